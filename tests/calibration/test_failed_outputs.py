"""Outputs of tools that say the call failed, and outputs that only hold words for it."""

from __future__ import annotations

import pytest

from kp_langchain.calibration.failed_outputs import BEGINNING_CHARS, reads_like_failure

FAILED = [
    "Error", "Error: the order was not found", "ERROR! disk full", "error 404", "Error (42)",
    "Error 404: Not Found", "error: 404 Not Found", "Error - no route", "[ERROR] disk full",
    "**Error**: no such row", "❌ Error: no such row", "- Error: first", "> Error: quoted",
    "KeyError: 'x'", "KeyError('x')", "openai.RateLimitError: slow down",
    "sqlite3.OperationalError: no such table: users", "java.lang.NullPointerException",
    "Code output:\nTraceback (most recent call last):\n  File \"x.py\", line 1",
    "bad\nValueError: x",
    "Cell In[1], line 1\n    print($4)\n          ^\nSyntaxError: invalid syntax",
    '{"error": "not found"}', '{\n  "error": "not found",\n  "code": 4\n}',
    "error: not found\ncode: 4",
    "Failed to fetch the page", "Failed: the bank refused", "Failed.", "Fatal error: out of memory",
    "Internal Server Error", "An error occurred while booking", "Error while reading the file",
    "Exception in thread main", "Invalid action!", "Permission denied: /etc/shadow",
    "Error al leer el archivo", "Fallo: sin conexión", "No se pudo abrir el archivo",
    "Fehler: Datei fehlt", "Fehler beim Lesen", "Erreur : fichier absent", "Erro: sem acesso",
    "Ошибка: нет файла", "错误：找不到文件",
    "Error: 404", "Error: 42P01 undefined table", "Error: none of the files exist",
    "Error: no such file", "Error: false positives only", "error: 3 of 5 failed",
    "Error: 0 rows, 1 expected", "Error\nno such row", "Failed\n\nno route",
    "Error from server (NotFound): pods", "Error response from daemon: no such image",
    "Error validating input", "Error creating the index", "error TS2322: Type",
    "error[E0308]: mismatched types", "Error (NotFound): no such pod", "Failed (exit code 2)",
    "Error - timed out", "Uncaught TypeError: x is null", "Uncaught (in promise) Error: x",
    "Unhandled exception", "FAILED TO CONNECT", "Tool error: no route", "HTTP Error 404: Not Found",
    '{"status": "error", "code": 4}', "bash: jqq: command not found", "An unexpected error occurred",
    "操作失败，请重试", "失败！", "エラー: ファイルがありません",
    "エラーが発生しました", "失敗しました", "오류: 파일이 없습니다",
    "오류가 발생했습니다", "실패했습니다",
]  # fmt: skip
HARMLESS = [
    None, "", "  \n", "[]", "OK", "0", "Done",
    "The Missing Piece is a book; it does not exist in French",  # words that describe things
    "Could not find [SAS]. Similar: ['SAS', 'Special Air Service']", "0 rows, nothing is missing",
    "3 failed logins since Monday", "The error is in chapter 2", "No errors",
    "No error: all is well",
    "Error rate: 2 %", "Errors: 0", "Error messages are shown in red", "Error handling in Python",
    "Error-free operation", "ErrorHandler: registered", "Errors and Failures, a novel",
    "Exceptional results", "Terror: a film", "Standard error: 0.05", "Mean squared error: 0.2",
    "Failed logins: 3", "failed: 0", "Failed: 3 of 5", "failed: 0, passed: 12",
    "Failure modes of pumps",
    "error: null", "error: none", "Error: no", '{"error": null, "rows": 3}',
    '{"error": "", "a": 1}',
    '{"ok": true, "error": "none"}', '{\n  "error": false\n}', '"errors": []',
    '{"error": "none"}', '{"error": "", "rows": 3}', "error: 0.05", "Error: none, all is well",
    "error\n-----\n(0 rows)", "error\r\n-----\r\n(0 rows)", "Failed\n0", "| Error |\n| --- |\n| 3 |",
    "error,count\n1,2", "error;count\n1;2", "Failed, Passed\n0, 12", "Error | Count",
    "Error - Wikipedia", "Exception – Britannica", "Error (song)", "Failure (2019 film)",
    "Failed to Launch is a 2006 film", "KeyError", "KeyError (exception)", "Error reporting in PHP",
    "Unhandled cases are listed below", "No results found: 0 missing",
    "Invalid entries were removed",
    "2 entries\nERROR: the disk was full\nINFO: mail was sent", "Inbox:\nFailed delivery notice",
    "Tickets:\nError: login page is blank (open)\nCrash on save (done)", "1: error",
    "Error: ±0.3 mm", "Errors: none found", "Error: none found", "Erreur : aucune", "Ошибка: нет",
    "错误率为百分之二", "失敗しない料理", "오류율 2 %", "Fehlerquote: 2 %",
    "x" * BEGINNING_CHARS + "\nError: y",
]  # fmt: skip


@pytest.mark.parametrize("output", FAILED)
def test_a_line_that_begins_with_a_word_for_an_error_says_that_the_call_failed(output: str) -> None:
    assert reads_like_failure(output)


@pytest.mark.parametrize("output", HARMLESS)
def test_words_for_errors_elsewhere_and_empty_outputs_say_nothing(output: str | None) -> None:
    assert not reads_like_failure(output)

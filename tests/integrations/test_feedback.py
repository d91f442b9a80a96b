"""Feedback in tracing tools as verdicts.

It is read with the tools' own packages, over HTTP on loopback. What the servers answer has
the form that the packages read; that of MLflow and Phoenix was compared with their real servers.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs

import pytest

from kp_langchain import ConfigError, TraceStore
from kp_langchain.errors import KPError
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.langsmith import LangSmithScores
from kp_langchain.integrations.tools import ToolFeedback, TracingTool, verdicts_from
from kp_langchain.verdict import RunVerdict
from tests.agents import ASK, handler, searching
from tests.commands import Done, cli, cli_apart
from tests.integrations.tools import environment_of, mlflow_trace, new_langfuse
from tests.loopback_tools import LoopbackTool, Request

pytestmark = pytest.mark.filterwarnings("ignore")
BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECRET = "sk-ant-api03-" + "Ab3dE6gH9jK2mN5p" * 5
TITLES = {
    "langfuse": "Langfuse", "phoenix": "Phoenix", "opik": "Opik", "mlflow": "MLflow",
    "langsmith": "LangSmith",
}  # fmt: skip
MODELS = {
    "langfuse": "EVAL", "phoenix": "LLM", "opik": "online_scoring", "mlflow": "LLM_JUDGE",
    "langsmith": "model",
}  # fmt: skip
PEOPLE = {
    "langfuse": "ANNOTATION", "phoenix": "HUMAN", "opik": "ui", "mlflow": "HUMAN",
    "langsmith": "app",
}  # fmt: skip


@dataclass
class Given:
    """A feedback that somebody gave, on a trace or on the span of one run in it."""

    trace: ExternalTrace
    value: Any
    key: str
    by: str
    at: datetime
    comment: str | None
    is_on_span: bool
    fields: dict[str, Any]

    @property
    def run_id(self) -> str:
        """LangSmith's id of the run that it is about."""
        return self.trace.span_id or self.trace.trace_id


@dataclass
class Backend:
    """What one tool's server answers.

    Attributes:
        tool: The name of the tool.
        given: The feedback that was given there.
        fault: What it answers instead, if anything.
        page: How many scores it returns at once, if it has pages.
    """

    tool: str
    given: list[Given] = field(default_factory=list)
    fault: tuple[int, Any] | None = None
    page: int = 100

    def give(
        self, trace: ExternalTrace, value: Any, /, key: str = "correct", *, by: str = "",
        at: datetime | None = None, comment: str | None = None, is_on_span: bool = False,
        **fields: Any,
    ) -> None:  # fmt: skip
        """Give feedback on a trace, a minute after the last; a person gives it by default."""
        at = at or BEGAN + timedelta(minutes=len(self.given))
        by = by or PEOPLE[self.tool]
        self.given.append(Given(trace, value, key, by, at, comment, is_on_span, fields))

    def __call__(self, request: Request) -> tuple[int, Any]:
        if self.fault is not None:
            return self.fault
        answer: tuple[int, Any] = getattr(self, f"_{self.tool}")(request)
        return answer

    def _langsmith(self, request: Request) -> tuple[int, Any]:
        if request.path == "/feedback" and request.method == "GET":
            query = parse_qs(request.query)
            assert len(query["run"]) <= 50  # they are in the URL, whose length is limited
            keys = query.get("key")
            found = [
                self._run_feedback(one)
                for one in self.given
                if one.run_id in query["run"] and (not keys or one.key in keys)
            ]
            start = int(query["offset"][0])
            return 200, found[start : start + int(query["limit"][0])]
        return 200, {}

    @staticmethod
    def _run_feedback(one: Given) -> dict[str, Any]:
        is_number = isinstance(one.value, int | float)
        return {
            "id": str(uuid.UUID(int=id(one))), "created_at": one.at.isoformat(),
            "modified_at": one.at.isoformat(), "run_id": one.run_id,
            "trace_id": one.trace.trace_id, "key": one.key, "comment": one.comment,
            "score": one.value if is_number else None, "value": None if is_number else one.value,
            "correction": None, "feedback_source": {"type": one.by, "metadata": None},
        } | one.fields  # fmt: skip

    def _langfuse(self, request: Request) -> tuple[int, Any]:
        query = parse_qs(request.query)
        if request.path.endswith("/scores") and request.method == "GET":
            wanted = query["traceId"][0].split(",")
            found = [
                one
                for one in self.given
                if one.trace.trace_id in wanted and one.key in query.get("name", [one.key])
            ]
            start = int(query.get("cursor", ["0"])[0])
            end = start + self.page
            meta = {"limit": 100} | ({"cursor": str(end)} if end < len(found) else {})
            return 200, {"data": list(map(self._score, found[start:end])), "meta": meta}
        return 202, {"message": "Accepted"}

    @staticmethod
    def _score(one: Given) -> dict[str, Any]:
        kinds = {bool: "BOOLEAN", str: "CATEGORICAL"}
        subject = {"kind": "trace", "id": one.trace.trace_id}
        if one.is_on_span:
            subject = {"kind": "observation", "id": str(one.trace.span_id)}
            subject["traceId"] = one.trace.trace_id
        return {
            "id": str(uuid.uuid4()), "projectId": "p", "name": one.key, "value": one.value,
            "dataType": kinds.get(type(one.value), "NUMERIC"), "source": one.by,
            "timestamp": one.at.isoformat(), "environment": "default", "comment": one.comment,
            "subject": subject,
        } | times(one.at)  # fmt: skip

    def _phoenix(self, request: Request) -> tuple[int, Any]:
        if "/projects/" in request.path:
            query = parse_qs(request.query)
            names = query.get("include_annotation_names")
            data = [
                {
                    "id": str(number), "source": "APP", "user_id": None, "name": one.key,
                    "annotator_kind": one.by, "metadata": {}, "identifier": "",
                    "span_id": one.trace.span_id, "created_at": one.at.isoformat(),
                    "updated_at": one.at.isoformat(),
                    "result": {
                        "label": one.value if isinstance(one.value, str) else None,
                        "score": None if isinstance(one.value, str) else float(one.value),
                        "explanation": one.comment,
                    },
                }
                for number, one in enumerate(self.given)
                if one.trace.span_id in query["span_ids"] and (not names or one.key in names)
            ]  # fmt: skip
            return 200, {"data": data, "next_cursor": None}
        if request.path.endswith("/span_annotations"):
            return 200, {"data": [{"id": str(n)} for n in range(len(request.json["data"]))]}
        return 404, {}

    def _opik(self, request: Request) -> tuple[int, Any]:
        if match := re.search(r"/(traces|spans)/([-0-9a-f]+)$", request.path):
            is_span = match[1] == "spans"
            found = [
                one
                for one in self.given
                if match[2] == (one.trace.span_id if is_span else one.trace.trace_id)
            ]
            if not found:
                return 404, {"errors": ["Trace not found"]}
            scores = [self._feedback_score(one) for one in found if one.is_on_span == is_span]
            start = {"start_time": BEGAN.isoformat(), "last_updated_at": BEGAN.isoformat()}
            return 200, {"id": match[2], "feedback_scores": scores} | start
        return 200, {}

    @staticmethod
    def _feedback_score(one: Given) -> dict[str, Any]:
        category = one.value if isinstance(one.value, str) else None
        return {
            "name": one.key, "category_name": category, "source": one.by, "reason": one.comment,
            "value": 7.0 if category else float(one.value), "last_updated_at": one.at.isoformat(),
        }  # fmt: skip

    def _mlflow(self, request: Request) -> tuple[int, Any]:
        match = re.search(r"/traces/([^/]+)(?:/assessments)?$", request.path)
        assert match, request.path
        if request.method == "POST":
            return 200, {"assessment": request.json["assessment"]}
        assessments = [
            {
                "assessment_id": f"a-{number}", "assessment_name": one.key, "trace_id": match[1],
                "source": {"source_type": one.by, "source_id": "somebody"}, "valid": True,
                "create_time": stamp(one.at), "last_update_time": stamp(one.at),
                "feedback": {"value": one.value}, "rationale": one.comment,
                **({"span_id": one.trace.span_id} if one.is_on_span else {}),
            }
            for number, one in enumerate(self.given)
            if one.trace.trace_id == match[1]
        ]  # fmt: skip
        return 200, mlflow_trace(match[1], assessments)


def times(at: datetime) -> dict[str, str]:
    return {"createdAt": at.isoformat(), "updatedAt": at.isoformat()}


def stamp(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


class Recorded:
    """A receiver of scores that knows the tool's id of each run, and sends nothing.

    Args:
        name: The name of the tool.
        trace_id: A UUID if all runs are in one trace of the program.
    """

    def __init__(self, name: str, trace_id: uuid.UUID | None = None) -> None:
        self.name = name
        self.trace_id = trace_id

    def find_trace(self, root_id: uuid.UUID, parent_id: uuid.UUID) -> ExternalTrace:
        project = {"phoenix": "my agents", "opik": "agents"}.get(self.name)
        prefix = "tr-" if self.name == "mlflow" else ""
        uuid_ = self.trace_id or root_id
        id_ = str(uuid_) if self.name in ("opik", "langsmith") else uuid_.hex
        is_langsmith = self.name == "langsmith"
        span_id = str(root_id) if is_langsmith else root_id.hex[-16:]
        return ExternalTrace(f"{prefix}{id_}", span_id, project, self.trace_id is not None)

    def send(self, scored: Any, external: ExternalTrace) -> None:
        pass


@dataclass
class Scene:
    """A store with runs that a tool has too, and the tool's server.

    Attributes:
        tool: The name of the tool.
        backend: What its server answers.
        server: Its server.
        store: The store.
        runs: Trace id and external trace of each run.
    """

    tool: str
    backend: Backend
    server: LoopbackTool
    store: TraceStore
    runs: list[tuple[str, ExternalTrace]]

    def read(self, **options: Any) -> list[RunVerdict]:
        return list(verdicts_from(connect(self), self.store, **options))

    def label(self, *words: str, **environment: str) -> Done:
        """Run the command; that for LangSmith leaves no threads behind."""
        run = cli if self.tool == "langsmith" and not environment else cli_apart
        environment = {
            **environment_of(self.tool, self.server.url), "KP_EMBEDDING_MODEL": "/no/such/model",
            **environment,
        }  # fmt: skip
        return run("label", *words, "--database", "runs.db", **environment)

    def known_ids(self) -> set[str | None]:
        """The tool's ids of the runs, by which their feedback is asked for."""
        is_span = self.tool in ("phoenix", "langsmith")
        return {one.span_id if is_span else one.trace_id for _, one in self.runs}


each_tool = pytest.mark.parametrize("scene", TITLES, indirect=True)
langsmith_alone = pytest.mark.parametrize("scene", ["langsmith"], indirect=True)


@pytest.fixture
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with play(Recorded(request.param), monkeypatch) as scene:
        yield scene


@pytest.fixture
def one_trace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with play(Recorded(request.param, uuid.uuid4()), monkeypatch) as scene:
        yield scene


@contextmanager
def play(receiver: Recorded, monkeypatch: pytest.MonkeyPatch, *, runs: int = 3) -> Iterator[Scene]:
    """Play runs that a tool has too."""
    backend = Backend(receiver.name)
    with LoopbackTool(backend) as server, TraceStore("runs.db") as store:
        watching = handler("finance", store=store, send_scores_to=[receiver])
        for _ in range(runs):
            searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush()
        known = list(store.external_traces.of_tool(receiver.name))
        assert len(known) == runs
        for name, value in environment_of(receiver.name, server.url).items():
            monkeypatch.setenv(name, value)
        yield Scene(receiver.name, backend, server, store, known)


def langsmith_client(url: str) -> Any:
    from langsmith import Client
    from urllib3.util import Retry

    options: Any = {"auto_batch_tracing": False, "retry_config": Retry(0), "timeout_ms": 60_000}
    return Client(url, api_key="key", **options)


def connect(scene: Scene) -> TracingTool:
    tool: TracingTool
    if scene.tool == "langsmith":
        tool = LangSmithScores(langsmith_client(scene.server.url))
    elif scene.tool == "langfuse":
        from kp_langchain.integrations.langfuse import LangfuseScores

        tool = LangfuseScores(new_langfuse(scene.server.url, tracing_enabled=False)[1])
    elif scene.tool == "phoenix":
        from kp_langchain.integrations.phoenix import PhoenixScores

        tool = PhoenixScores()
    elif scene.tool == "opik":
        from opik import Opik

        from kp_langchain.integrations.opik import OpikScores

        tool = OpikScores(Opik(host=f"{scene.server.url}/api", workspace="default"))
    else:
        import mlflow

        from kp_langchain.integrations.mlflow import MLflowScores

        mlflow.set_tracking_uri(scene.server.url)
        tool = MLflowScores()
    return tool


# ------------------------------------------------------------------ reading

VALUES: list[tuple[Any, bool | None, float | None]] = [
    (1, True, None), (0, False, None), (1.0, True, None), (0.75, True, 0.75), (0.5, True, 0.5),
    (0.25, False, 0.25), ("correct", True, None), (" No ", False, None), (4, None, None),
    (-1, None, None),
]  # fmt: skip


@each_tool
def test_what_feedback_says_and_what_of_it_is_read(scene: Scene) -> None:
    """Who gave it, on what run, when, and what cannot be read; never what was sent from here."""
    (trace_id, external), (other_id, other), _ = scene.runs
    for number, (value, _, _) in enumerate(VALUES):
        scene.backend.give(external, value, f"key {number}", comment="as I see it")
    scene.backend.give(other, 1, by=MODELS[scene.tool])
    scene.backend.give(other, 0.4, "kp_quality_score")
    before = len(scene.server.requests)
    found = {one.key: one for one in scene.read()}
    for number, (value, success, confidence) in enumerate(VALUES):
        one = found.pop(f"key {number}")
        assert (one.run_id, one.at) == (trace_id, BEGAN + timedelta(minutes=number))
        if success is None:
            assert one.verdict is None
            assert f"feedback 'key {number}': its score is {value}" in one.why
            assert one.place.startswith(f"{TITLES[scene.tool]}, trace ")
            continue
        assert one.verdict is not None
        assert (one.verdict.success, one.verdict.confidence) == (success, confidence)
        assert (one.verdict.source, one.verdict.note) == (scene.tool, "as I see it")
        assert (one.verdict.at, one.verdict.by_model) == (one.at, False)
    (by_model,) = found.values()
    assert by_model.verdict is not None
    assert (by_model.run_id, by_model.verdict.by_model) == (other_id, True)
    late = scene.read(key="key 3", since=BEGAN + timedelta(minutes=3), pass_at=0.8)
    assert [one.verdict and one.verdict.success for one in late] == [False]
    assert scene.read(key="key 3", since=BEGAN + timedelta(minutes=4)) == []

    sent = scene.server.requests[before:]
    texts = " ".join(f"{one.path}?{one.query} {one.body.decode()}" for one in sent)
    assert {one.method for one in sent} == {"GET"}
    assert not [word for word in ("search", "bank", "finance", "kp:trace") if word in texts]
    assert all(str(id_) in texts for id_ in scene.known_ids())


@pytest.mark.parametrize("one_trace", TITLES, indirect=True)
def test_of_several_runs_in_one_trace_feedback_is_about_the_one_on_whose_span_it_is(
    one_trace: Scene,
) -> None:
    _, (trace_id, external), _ = one_trace.runs
    one_trace.backend.give(external, 1, is_on_span=True)
    other = ExternalTrace(external.trace_id, "f" * 16, external.project)  # of a tool, say
    one_trace.backend.give(other, 0, is_on_span=True)
    assert [one.run_id for one in one_trace.read()] == [trace_id]
    if one_trace.tool not in ("phoenix", "langsmith"):  # they have feedback on spans alone
        one_trace.backend.give(external, 1, "whole")
        (one,) = one_trace.read(key="whole")
        assert one.verdict is None
        assert one.why == "feedback 'whole' is on a trace with 3 runs; give it on the span of one"


@each_tool
def test_what_goes_wrong_is_one_clear_error(scene: Scene) -> None:
    title, tool = TITLES[scene.tool], connect(scene)
    faults: list[tuple[int, Any, str]] = [
        (401, "no", "refuses the key"), (403, "no", "refuses the key"), (400, "no", "status 400"),
        (200, 7, "cannot be read"),
    ]  # fmt: skip
    if scene.tool == "langsmith":
        faults += [(status, "no", f"status {status}") for status in (404, 429, 500)]
        faults += [(200, body, "cannot be read") for body in ({"a": 1}, [1], [{"id": 1}])]
    for status, body, message in faults:
        scene.backend.fault = status, body
        with pytest.raises(KPError, match=message) as caught:
            list(verdicts_from(tool, scene.store))
        assert str(caught.value).startswith(title)
    with pytest.raises(ConfigError, match="pass_at is 7"):
        scene.read(pass_at=7)
    if scene.tool == "phoenix":  # a project that was deleted there has no feedback
        scene.backend.fault = 404, "no project"
        assert scene.read() == []


@pytest.mark.parametrize("scene", ["langfuse"], indirect=True)
def test_all_pages_are_read(scene: Scene) -> None:
    scene.backend.page = 2
    for _, external in scene.runs * 3:
        scene.backend.give(external, 1)
    assert len(scene.read()) == 9


def langsmith_feedback(backend: Backend, *ids: str) -> list[ToolFeedback]:
    with LoopbackTool(backend) as server:
        tool = LangSmithScores(langsmith_client(server.url))
        return list(tool.read_feedback([ExternalTrace(id_, id_) for id_ in ids], None))


def test_all_feedback_of_langsmith_is_read_once() -> None:
    backend, ids = Backend("langsmith"), [str(uuid.uuid4()) for _ in range(60)]
    for id_ in [*ids, str(uuid.uuid4())]:
        for score in (0, 1, 1):
            backend.give(ExternalTrace(id_), score)
    found = langsmith_feedback(backend, *ids, *ids)
    assert len(found) == 180
    assert {one.trace_id for one in found} == set(ids)


def test_what_the_fields_of_langsmith_mean() -> None:
    backend, id_, later = Backend("langsmith"), str(uuid.uuid4()), BEGAN + timedelta(days=1)
    run, changed = ExternalTrace(id_), later.replace(tzinfo=None).isoformat()
    backend.give(run, 1, "both", value="incorrect")
    backend.give(run, {"a": 1}, "mapping")
    backend.give(run, None, "comment", comment="hm")
    backend.give(run, True, "changed", modified_at=changed)
    both, mapping, true = langsmith_feedback(backend, id_)
    assert (both.value, mapping.value) == (1, {"a": 1})
    assert (true.at, true.value) == (later, True)


# ------------------------------------------------------------------ the command


@each_tool
def test_a_person_outranks_a_model_and_reading_again_changes_nothing(scene: Scene) -> None:
    (first_id, first), (second_id, second), _ = scene.runs
    scene.backend.give(first, 0, comment=f"no, see {SECRET}")
    scene.backend.give(first, 1, by=MODELS[scene.tool])
    scene.backend.give(second, 1, by=MODELS[scene.tool])
    scene.backend.give(second, 4)
    scene.backend.give(second, 1, "kp_quality_score")
    done = scene.label("pull", scene.tool, "--json", KP_SEND_SCORES_TO=scene.tool)
    assert done.returncode == 1
    title = TITLES[scene.tool]
    assert f"{title} has 4 feedbacks under 'correct' on 3 runs." in done.stderr
    assert "feedback 'correct': its score is 4" in done.stderr
    assert re.search("Labelled 2,.* unknown 0, skipped 1", done.stderr)
    # The late verdicts are in the scores that the tool has.
    assert f"Scores sent to {scene.tool}: 2 of 2." in done.stderr
    changes = [json.loads(line) for line in done.stdout.splitlines()]
    success = {change["trace_id"]: change["success"] for change in changes}
    assert success == {first_id: False, second_id: True}
    run, other = scene.store.get(first_id), scene.store.get(second_id)
    assert run is not None
    assert other is not None
    assert (run.success, other.success) == (False, True)
    assert run.confidence_source == scene.tool
    verdicts = scene.store.verdicts(first_id)
    assert [(one.success, one.by_model) for one in verdicts] == [(False, False), (True, True)]
    assert SECRET not in str(verdicts)

    again = scene.label("pull", scene.tool, "--key", "correct", "--since", "2026-01-01")
    assert "Labelled 0," in again.stdout
    assert "given before 3" in again.stdout
    assert scene.store.verdicts(first_id) == verdicts


@langsmith_alone
def test_several_keys_are_not_guessed_among(scene: Scene) -> None:
    scene.backend.give(scene.runs[0][1], 0)
    scene.backend.give(scene.runs[0][1], 1, "toxicity")
    done = scene.label("pull", "langsmith")
    assert done.returncode == 1
    assert "correct (1), toxicity (1)" in " ".join(done.stderr.split())
    assert scene.store.verdicts(scene.runs[0][0]) == []


def test_a_store_without_runs_of_the_tool_says_what_to_do() -> None:
    with TraceStore("empty.db") as store:
        watching = handler("finance", store=store)
        searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush()
    done = cli_apart("label", "pull", "phoenix", "--database", "empty.db", columns=300)
    assert done.returncode == 1
    assert "no run that Phoenix is known to have" in done.stderr
    assert "send_scores_to=['phoenix']" in done.stderr

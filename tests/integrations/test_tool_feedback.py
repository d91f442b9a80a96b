"""Verdicts read from tracing tools with the tools' own packages, over HTTP on loopback.

What the servers answer has the form that the packages read; that of MLflow and Phoenix was compared
with what their real servers answer.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs

import pytest

from kp_langchain import TraceStore
from kp_langchain.errors import KPError
from kp_langchain.gate.external_trace import ExternalTrace
from kp_langchain.integrations.tool_feedback import FeedbackTool, verdicts_from
from kp_langchain.verdict import RunVerdict
from tests.agents import ASK, handler, searching
from tests.commands import Done, cli_apart
from tests.loopback_tools import LoopbackTool, Request

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.xdist_group("tools"),
]
BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECRET = "sk-ant-api03-" + "Ab3dE6gH9jK2mN5p" * 5
TOOLS = ("langfuse", "phoenix", "opik", "mlflow")
NAMES = {"langfuse": "Langfuse", "phoenix": "Phoenix", "opik": "Opik", "mlflow": "MLflow"}
MODELS = {"langfuse": "EVAL", "phoenix": "LLM", "opik": "online_scoring", "mlflow": "LLM_JUDGE"}
PEOPLE = {"langfuse": "ANNOTATION", "phoenix": "HUMAN", "opik": "ui", "mlflow": "HUMAN"}


@dataclass
class Given:
    """A feedback that somebody gave, on a trace or on the span of one run in it."""

    trace: ExternalTrace
    value: Any
    key: str
    by: str
    at: datetime
    comment: str
    is_on_span: bool


@dataclass
class Backend:
    """What one tool's server answers.

    Attributes:
        tool: The name of the tool.
        given: The feedback that was given there.
        queued: The ids of the traces in its annotation queues, or with the mark of a wanted
            verdict.
        queues: The names of its annotation queues.
        fault: What it answers instead, if anything.
        page: How many scores it returns at once, if it has pages.
        kinds: What is in its annotation queues, if it tells traces from spans.
    """

    tool: str
    given: list[Given] = field(default_factory=list)
    queued: list[str] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    fault: tuple[int, Any] | None = None
    page: int = 100
    kinds: set[str] = field(default_factory=set)

    def give(
        self, trace: ExternalTrace, value: Any, key: str = "correct", *, by: str = "", **more: Any
    ) -> None:
        """Give feedback on a trace, a minute after the last; a person gives it by default."""
        at = more.pop("at", BEGAN + timedelta(minutes=len(self.given)))
        by = by or PEOPLE[self.tool]
        comment, is_on_span = more.pop("comment", ""), more.pop("is_on_span", False)
        self.given.append(Given(trace, value, key, by, at, comment, is_on_span))

    def __call__(self, request: Request) -> tuple[int, Any]:
        if self.fault is not None:
            return self.fault
        answer: tuple[int, Any] = getattr(self, f"_{self.tool}")(request)
        return answer

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
        if request.path.endswith("/annotation-queues"):
            data = [
                {"id": f"q-{name}", "name": name, "scoreConfigIds": []} | times(BEGAN)
                for name in self.queues
            ]
            return 200, {"data": data, "meta": pages(data)}
        if request.path.endswith("/items") and request.method == "GET":
            data = [self._item(id_) for id_ in self.queued]
            return 200, {"data": data, "meta": pages(data)}
        if request.path.endswith("/items"):
            self.queued.append(request.json["objectId"])
            self.kinds.add(request.json["objectType"])
            return 200, self._item(self.queued[-1])
        # A list of scores from version 5 of langfuse, one from 4.
        return (202, {"message": "Accepted"}) if request.body[:1] == b"[" else (200, {"id": "s"})

    @staticmethod
    def _score(one: Given) -> dict[str, Any]:
        kinds = {bool: "BOOLEAN", str: "CATEGORICAL"}
        return {
            "id": str(uuid.uuid4()),
            "projectId": "p",
            "name": one.key,
            "dataType": kinds.get(type(one.value), "NUMERIC"),
            "value": one.value,
            "source": one.by,
            "timestamp": one.at.isoformat(),
            "environment": "default",
            "comment": one.comment or None,
            "subject": {
                "kind": "observation",
                "id": one.trace.span_id,
                "traceId": one.trace.trace_id,
            }
            if one.is_on_span
            else {"kind": "trace", "id": one.trace.trace_id},
        } | times(one.at)

    @staticmethod
    def _item(id_: str) -> dict[str, Any]:
        return {
            "id": f"i-{id_}",
            "queueId": "q-kp_langchain",
            "objectId": id_,
            "objectType": "TRACE",
            "status": "PENDING",
        } | times(BEGAN)

    def _phoenix(self, request: Request) -> tuple[int, Any]:
        if "/projects/" in request.path:
            query = parse_qs(request.query)
            names = query.get("include_annotation_names")
            data = [
                {
                    "id": str(number),
                    "source": "APP",
                    "user_id": None,
                    "name": one.key,
                    "annotator_kind": one.by,
                    "result": {
                        "label": one.value if isinstance(one.value, str) else None,
                        "score": None if isinstance(one.value, str) else float(one.value),
                        "explanation": one.comment or None,
                    },
                    "metadata": {},
                    "identifier": "",
                    "span_id": one.trace.span_id,
                    "created_at": one.at.isoformat(),
                    "updated_at": one.at.isoformat(),
                }
                for number, one in enumerate(self.given)
                if one.trace.span_id in query["span_ids"] and (not names or one.key in names)
            ]
            return 200, {"data": data, "next_cursor": None}
        if request.path.endswith("/span_annotations"):
            sent = request.json["data"]
            self.queued += [one["span_id"] for one in sent if one["name"] == "kp_verdict_wanted"]
            return 200, {"data": [{"id": str(number)} for number in range(len(sent))]}
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
        if request.path.endswith("/projects/retrieve"):
            return 200, {"id": "project", "name": "agents"}
        if request.path.endswith("/annotation-queues/"):
            name = {"id": "q", "project_id": "project", "scope": "trace"}
            is_first = parse_qs(request.query)["page"] == ["1"]
            content = [name | {"name": one} for one in self.queues] if is_first else []
            return 200, {"content": content}
        if request.path.endswith("/annotation-queues") and request.method == "POST":
            self.queues.append(request.json["name"])
            return 201, {}
        if request.path.endswith("/items/add"):
            self.queued += [id_ for id_ in request.json["ids"] if id_ not in self.queued]
        return 200, {}

    @staticmethod
    def _feedback_score(one: Given) -> dict[str, Any]:
        category = one.value if isinstance(one.value, str) else None
        return {
            "name": one.key,
            "category_name": category,
            "value": 7.0 if category else float(one.value),
            "reason": one.comment or None,
            "source": one.by,
            "last_updated_at": one.at.isoformat(),
        }

    def _mlflow(self, request: Request) -> tuple[int, Any]:
        if match := re.search(r"/traces/([^/]+)/tags$", request.path):
            self.queued += [match[1]] if request.json["key"] == "kp_verdict_wanted" else []
            return 200, {}
        match = re.search(r"/traces/([^/]+)(?:/assessments)?$", request.path)
        assert match, request.path
        if request.method == "POST":
            return 200, {"assessment": request.json["assessment"]}
        location = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
        info = {
            "trace_id": match[1],
            "trace_location": location,
            "request_time": "2026-01-01T00:00:00Z",
            "state": "OK",
            "assessments": [
                {
                    "assessment_id": f"a-{number}",
                    "assessment_name": one.key,
                    "trace_id": match[1],
                    "source": {"source_type": one.by, "source_id": "somebody"},
                    "create_time": stamp(one.at),
                    "last_update_time": stamp(one.at),
                    "feedback": {"value": one.value},
                    "rationale": one.comment or None,
                    "valid": True,
                    **({"span_id": one.trace.span_id} if one.is_on_span else {}),
                }
                for number, one in enumerate(self.given)
                if one.trace.trace_id == match[1]
            ],
        }
        return 200, {"trace": {"trace_info": info}}


def times(at: datetime) -> dict[str, str]:
    return {"createdAt": at.isoformat(), "updatedAt": at.isoformat()}


def stamp(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def pages(data: list[Any]) -> dict[str, int]:
    return {"page": 1, "limit": 100, "totalItems": len(data), "totalPages": 1}


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
        id_ = str(uuid_) if self.name == "opik" else uuid_.hex
        is_part = self.trace_id is not None
        return ExternalTrace(f"{prefix}{id_}", root_id.hex[-16:], project, is_part)

    def send(self, scored: Any, external: ExternalTrace) -> None:
        pass


@dataclass
class Scene:
    """A store with three runs that a tool has too, and the tool's server.

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
        settings = environment_of(self) | environment
        return cli_apart("label", "--database", "runs.db", *words, **settings)


@pytest.fixture(params=TOOLS)
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with play(Recorded(request.param), monkeypatch) as scene:
        yield scene


@pytest.fixture(params=TOOLS)
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
        scene = Scene(receiver.name, backend, server, store, known)
        for name, value in environment_of(scene).items():
            monkeypatch.setenv(name, value)
        yield scene


def environment_of(scene: Scene) -> dict[str, str]:
    url = scene.server.url
    by_tool = {
        "langfuse": {
            "LANGFUSE_PUBLIC_KEY": "pk",
            "LANGFUSE_SECRET_KEY": "sk",
            "LANGFUSE_BASE_URL": url,
            "LANGFUSE_HOST": url,
        },
        "phoenix": {"PHOENIX_COLLECTOR_ENDPOINT": url},
        "opik": {
            "OPIK_URL_OVERRIDE": f"{url}/api",
            "OPIK_SENTRY_ENABLE": "false",
            "OPIK_WORKSPACE": "default",
        },
        "mlflow": {"MLFLOW_TRACKING_URI": url, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"},
    }
    return by_tool[scene.tool]


def connect(scene: Scene) -> FeedbackTool:
    tool: FeedbackTool
    if scene.tool == "langfuse":
        from langfuse import Langfuse

        from kp_langchain.integrations.langfuse import LangfuseScores

        key = f"pk-{uuid.uuid4().hex}"  # clients are kept by key, in the process
        client = Langfuse(
            public_key=key,
            secret_key="sk",  # noqa: S106
            base_url=scene.server.url,
            tracing_enabled=False,
        )
        tool = LangfuseScores(client)
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


@pytest.mark.parametrize(
    ("value", "success", "confidence"),
    [
        (1, True, None),
        (0, False, None),
        (0.75, True, 0.75),
        (0.25, False, 0.25),
        ("correct", True, None),
        ("No", False, None),
    ],
)
def test_what_a_feedback_says(
    scene: Scene, value: Any, success: bool, confidence: float | None
) -> None:
    (trace_id, external), *_ = scene.runs
    scene.backend.give(external, value, comment="as I see it")
    (one,) = scene.read()
    assert one.verdict is not None
    assert (one.verdict.success, one.verdict.confidence) == (success, confidence)
    assert (one.verdict.source, one.verdict.note) == (scene.tool, "as I see it")
    assert (one.run_id, one.key, one.verdict.at) == (trace_id, "correct", BEGAN)
    assert not one.verdict.by_model


def test_only_the_wanted_key_and_time_and_never_what_was_sent(scene: Scene) -> None:
    (_, first), (_, second), _ = scene.runs
    scene.backend.give(first, 1)
    scene.backend.give(first, 0, "toxicity")
    scene.backend.give(second, 0)
    scene.backend.give(second, 0.4, "kp_quality_score")
    assert sorted(one.key for one in scene.read()) == ["correct", "correct", "toxicity"]
    assert len(scene.read(key="correct")) == 2
    (late,) = scene.read(key="correct", since=BEGAN + timedelta(minutes=2))
    assert late.run_id == scene.runs[1][0]


def test_ids_and_the_key_are_all_that_is_sent(scene: Scene) -> None:
    scene.backend.give(scene.runs[0][1], 1)
    before = len(scene.server.requests)
    scene.read(key="correct")
    sent = scene.server.requests[before:]
    assert sent
    texts = " ".join(f"{one.path}?{one.query} {one.body.decode()}" for one in sent)
    assert {one.method for one in sent} == {"GET"}
    for word in ("search", "ACME", "bank", "finance", "kp:trace"):
        assert word not in texts
    ids = {external.span_id if scene.tool == "phoenix" else external.trace_id
           for _, external in scene.runs}  # fmt: skip
    assert all(id_ is not None and id_ in texts for id_ in ids)


def test_a_score_outside_0_to_1_is_reported(scene: Scene) -> None:
    scene.backend.give(scene.runs[0][1], 4)
    (one,) = scene.read()
    assert one.verdict is None
    assert "feedback 'correct': its score is 4" in one.why
    assert one.place.startswith(f"{NAMES[scene.tool]}, run ")


def test_feedback_on_the_span_of_a_run_is_about_that_run_alone(one_trace: Scene) -> None:
    _, (trace_id, external), _ = one_trace.runs
    one_trace.backend.give(external, 1, is_on_span=True)
    other = ExternalTrace(external.trace_id, "f" * 16, external.project)  # of a tool, say
    one_trace.backend.give(other, 0, is_on_span=True)
    assert [one.run_id for one in one_trace.read()] == [trace_id]


@pytest.mark.parametrize("one_trace", ["langfuse", "opik", "mlflow"], indirect=True)
def test_feedback_on_a_trace_with_several_runs_is_reported(
    one_trace: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kp_langchain.integrations.tool_feedback._RUNS_AT_ONCE", 2)
    one_trace.backend.give(one_trace.runs[0][1], 1)
    (one,) = one_trace.read()
    assert one.verdict is None
    assert one.why == "feedback 'correct' is on a trace with 3 runs; give it on the span of one"


@pytest.mark.parametrize("name", ["langfuse", "opik", "mlflow"])
def test_feedback_on_a_trace_with_one_run_is_about_that_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with play(Recorded(name, uuid.uuid4()), monkeypatch, runs=1) as scene:
        scene.backend.give(scene.runs[0][1], 1)
        (one,) = scene.read()
        assert one.verdict is not None
        assert one.run_id == scene.runs[0][0]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ((401, "no"), "refuses the key"),
        ((403, "no"), "refuses the key"),
        ((500, "no"), "500|cannot be reached"),
        ((200, 7), "cannot be read"),
    ],
)
def test_what_goes_wrong_is_one_clear_error(
    scene: Scene, fault: tuple[int, Any], message: str
) -> None:
    tool = connect(scene)
    scene.backend.fault = fault
    with pytest.raises(KPError, match=message) as caught:
        list(verdicts_from(tool, scene.store))
    assert str(caught.value).startswith(NAMES[scene.tool])


# ------------------------------------------------------------------ the command


def test_a_person_outranks_a_model_and_reading_again_changes_nothing(scene: Scene) -> None:
    (first_id, first), (second_id, second), _ = scene.runs
    scene.backend.give(first, 0, comment=f"no, see {SECRET}")
    scene.backend.give(first, 1, by=MODELS[scene.tool])
    scene.backend.give(second, 1, by=MODELS[scene.tool])
    scene.backend.give(second, 1, "kp_quality_score")
    done = scene.label(f"--from-{scene.tool}", "--json", KP_SEND_SCORES_TO=scene.tool)
    assert done.returncode == 0, done.stderr
    name = NAMES[scene.tool]
    assert f"{name} has 3 feedbacks under 'correct' on 3 runs." in done.stderr
    assert "Labelled 2," in done.stderr
    # The late verdicts are in the scores that the tool has.
    assert f"Scores sent to {scene.tool}: 2 of 2." in done.stderr
    run, other = scene.store.get(first_id), scene.store.get(second_id)
    assert run is not None
    assert other is not None
    assert (run.success, other.success) == (False, True)
    assert run.confidence_source == scene.tool
    verdicts = scene.store.verdicts(first_id)
    assert [(one.success, one.by_model) for one in verdicts] == [(False, False), (True, True)]
    assert SECRET not in str(verdicts)

    again = scene.label(f"--from-{scene.tool}", "--key", "correct", "--since", "2026-01-01")
    assert again.returncode == 0, again.stderr
    assert "Labelled 0," in again.stdout
    assert "given before 3" in again.stdout
    assert scene.store.verdicts(first_id) == verdicts


def test_a_model_verdict_that_came_first_gives_way(scene: Scene) -> None:
    (trace_id, external), *_ = scene.runs
    scene.backend.give(external, 1, by=MODELS[scene.tool])
    assert scene.label(f"--from-{scene.tool}").returncode == 0
    before = scene.store.get(trace_id)
    assert before is not None
    assert before.success
    # Given earlier than the model's, read later.
    scene.backend.give(external, 0, at=BEGAN - timedelta(days=1))
    done = scene.label(f"--from-{scene.tool}")
    assert done.returncode == 0, done.stderr
    run = scene.store.get(trace_id)
    assert run is not None
    assert not run.success
    labels = {one.trace_id: one.label for one in scene.store.summaries()}
    assert labels[trace_id] is False


def test_several_keys_are_not_guessed_among(scene: Scene) -> None:
    scene.backend.give(scene.runs[0][1], 0)
    scene.backend.give(scene.runs[0][1], 1, "toxicity")
    done = scene.label(f"--from-{scene.tool}")
    assert done.returncode == 1
    assert "correct (1), toxicity (1)" in " ".join(done.stderr.split())
    assert scene.store.verdicts(scene.runs[0][0]) == []


def test_runs_worth_a_verdict_are_put_where_people_give_them(scene: Scene) -> None:
    words = ("--next", "--ask-in", scene.tool, "--limit", "2")
    if scene.tool == "langfuse":
        done = scene.label(*words)
        assert done.returncode == 1
        message = "error: Langfuse has no annotation queue 'kp_langchain', only none; create it"
        assert message in " ".join(done.stderr.split())
        scene.backend.queues.append("kp_langchain")
    done = scene.label(*words)
    assert done.returncode == 0, done.stderr
    assert f"{NAMES[scene.tool]}: 2 of 2 runs " in done.stdout
    known = {one.span_id if scene.tool == "phoenix" else one.trace_id for _, one in scene.runs}
    assert len(scene.backend.queued) == 2
    assert set(scene.backend.queued) < known
    again = scene.label(*words)
    assert again.returncode == 0, again.stderr
    assert len(set(scene.backend.queued)) == 2
    if scene.tool == "langfuse":
        assert "Langfuse: 0 of 2 runs " in again.stdout
        assert len(scene.backend.queued) == 2


@pytest.mark.parametrize("one_trace", ["langfuse"], indirect=True)
def test_runs_in_one_trace_are_asked_about_one_by_one(one_trace: Scene) -> None:
    one_trace.backend.queues.append("kp_langchain")
    done = one_trace.label("--next", "--ask-in", "langfuse")
    assert done.returncode == 0, done.stderr
    assert "Langfuse: 3 of 3 runs " in done.stdout
    assert set(one_trace.backend.queued) == {one.span_id for _, one in one_trace.runs}
    assert one_trace.backend.kinds == {"OBSERVATION"}


def test_a_store_without_runs_of_the_tool_says_what_to_do(tool: str) -> None:
    with TraceStore("empty.db") as store:
        watching = handler("finance", store=store)
        searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush()
    done = cli_apart("label", f"--from-{tool}", "--database", "empty.db", columns=300)
    assert done.returncode == 1
    assert f"no run that {NAMES[tool]} is known to have" in done.stderr
    assert f"send_scores_to=['{tool}']" in done.stderr


@pytest.fixture(params=TOOLS)
def tool(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("scene", ["phoenix"], indirect=True)
def test_a_project_that_was_deleted_in_phoenix_has_no_feedback(scene: Scene) -> None:
    scene.backend.fault = (404, "no project")
    assert scene.read() == []


@pytest.mark.parametrize("scene", ["langfuse"], indirect=True)
def test_traces_of_another_langfuse_project_enter_no_queue(scene: Scene) -> None:
    scene.backend.queues.append("kp_langchain")
    elsewhere = ExternalTrace("e" * 32, "5" * 16, "pk-of-another-project")
    known = scene.runs[0][1]
    assert connect(scene).ask_for_verdicts([elsewhere, known], "kp_langchain") == 1
    assert scene.backend.queued == [known.trace_id]


@pytest.mark.parametrize("one_trace", ["opik", "mlflow"], indirect=True)
def test_runs_in_one_trace_enter_a_queue_of_traces_once_at_most(one_trace: Scene) -> None:
    done = one_trace.label("--next", "--ask-in", one_trace.tool)
    assert done.returncode == 0, done.stderr
    number = 0 if one_trace.tool == "opik" else 3
    assert f"{NAMES[one_trace.tool]}: {number} of 3 runs " in done.stdout
    assert len(one_trace.backend.queued) == min(number, 1)


@pytest.mark.parametrize("scene", ["langfuse"], indirect=True)
def test_all_pages_are_read(scene: Scene) -> None:
    scene.backend.page = 2
    for _, external in scene.runs * 3:
        scene.backend.give(external, 1)
    assert len(scene.read()) == 9

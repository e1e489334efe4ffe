"""The page: parsed as a browser would, for finished, partial, supervised and hostile runs."""

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

import pytest
from jinja2 import UndefinedError

from tests.report.fake_run import hostile_run, online_run, supervised_run
from whet.errors import RunFailed, UserError
from whet.number_format import number
from whet.report.formatting import ENVIRONMENT
from whet.report.run.page import write_report
from whet.runs.directory import RunDirectory

VOID = frozenset({"br", "input", "meta", "link", "img"})


@dataclass
class Page(HTMLParser):
    """The elements of a page, and its text; unbalanced tags are an error."""

    elements: list = field(default_factory=list)
    words: list = field(default_factory=list)
    open: list = field(default_factory=list)

    def __post_init__(self):
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def having(self, css_class):
        return [attrs for _, attrs in self.elements if css_class in (attrs.get("class") or "").split()]


def read(path):
    page = Page()
    page.feed(path.read_text("utf-8"))
    assert page.open == []
    return page, " ".join(page.words)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return write_report(online_run(tmp_path_factory.mktemp("finished"), steps=40))


def test_the_headline_has_the_measured_numbers(finished):
    results = RunDirectory.open(finished.parent, is_writer=False).results()
    _, text = read(finished)
    before, after = results["before"], results["after"]
    assert f"{100 * before['eval/accuracy']:.0f} %" in text
    low, high = after["eval/accuracy_low"], after["eval/accuracy_high"]
    assert f"{100 * low:.1f} to {100 * high:.1f} %" in text
    assert "intervals apart" in text
    for word in ("grpo-reverse", "40 steps", "seed 0", "Linux 6.8 x86_64", "2.12.0", "coefficient: 0.02"):
        assert word in text


def test_seconds_of_a_step_and_of_waiting_are_among_the_facts(tmp_path):
    path = online_run(tmp_path, steps=4)
    run = RunDirectory.open(path, is_writer=False)
    seconds = [row["seconds/step"] for row in run.timings()]
    _, text = read(write_report(path))
    assert f"{number(sum(seconds) / 4)} s a step" in text
    assert "waiting" not in text
    rows = [{**row, "seconds/waiting": 0.1} for row in run.timings()]
    (path / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert f"{number(sum(seconds) / 4)} s a step, 0.1 s of it waiting for rollouts" in read(write_report(path))[1]


def test_before_and_after_marks_equal_the_recorded_answers(finished):
    run = RunDirectory.open(finished.parent, is_writer=False)
    first, last = (run.answers(run.answer_steps()[i]) for i in (0, -1))
    changed = [a["correct"] != b["correct"] for a, b in zip(first, last, strict=True)]
    page, text = read(finished)
    assert len(page.having("changed")) == min(40, sum(changed))
    assert len(page.having("same")) == min(20, len(changed) - sum(changed))
    learned = sum(b["correct"] for b, moved in zip(last, changed, strict=True) if moved)
    assert f"{learned} became right, {sum(changed) - learned} became wrong" in text
    assert "tr.same" in finished.read_text("utf-8")  # the filter is a rule of the style sheet


def test_before_and_after_show_the_rewards_of_answers_without_a_reference(tmp_path):
    with RunDirectory.create(tmp_path, "own-reward", "steps: 1\n") as run:
        for step, rewards in ((0, (1.0, 2.0, 0.5)), (1, (1.5, 0.25, 0.5))):
            rows = [
                {"id": str(n), "prompt": f"p{n}", "answer": "", "text": "t", "correct": None, "tokens": 2}
                | {"finish": "stop", "sample": 0, "reward": reward, "parts": {"short": reward / 2}}
                for n, reward in enumerate(rewards)
            ]
            run.record_answers(step, [*rows, {**rows[0], "sample": 1, "reward": None}])
            run.log(
                step, {"eval/reward": sum(rewards) / 3, "eval/reward_low": 0, "eval/reward_high": 2, "eval/prompts": 3}
            )
    page, text = read(write_report(run.path))
    assert "3 held-out examples, answered greedily. The reward of 1 rose, that of 1 fell." in text
    assert (len(page.having("changed")), len(page.having("same"))) == (2, 1)
    assert "reward 1.5, short 0.75" in text
    assert "expected" not in text
    assert "95 % intervals: 0 to 2 and 0 to 2, on 3 prompts" in text


def test_rollouts_prefer_groups_that_differ_and_shade_the_unlikely_token(finished):
    page, text = read(finished)
    assert "reverse: whetstone" in text
    assert len(page.having("group")) == 2
    shades = [attrs for attrs in page.having("token") if attrs["title"].startswith("log-prob -2.700 (6.7 %)")]
    assert len(shades) == 6  # the last letter of three wrong rollouts in each of two groups
    assert {attrs["class"] for attrs in shades} == {"token h5"}


def test_there_are_as_many_charts_as_panels_and_their_data_are_the_metrics(finished):
    page, _ = read(finished)
    charts = [json.loads(attrs["data-curves"]) for attrs in page.having("chart")]
    assert len(charts) == 13
    run = RunDirectory.open(finished.parent, is_writer=False)
    accuracies = [row["eval/accuracy"] for row in run.metrics() if "eval/accuracy" in row]
    shown = [float(value) for value in charts[0]["curves"][0]["shown"]]
    assert shown == pytest.approx([100 * value for value in accuracies], rel=5e-3)


def test_the_page_needs_no_network_and_runs_only_its_own_script(finished):
    source = finished.read_text("utf-8")
    page, _ = read(finished)
    assert not [
        tag for tag, attrs in page.elements if tag in ("link", "img", "iframe") or "src" in attrs or "href" in attrs
    ]
    assert not re.search(r"https?://|@import|url\(", source)
    script = re.search(r"<script>(.*?)</script>", source, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(attrs["content"] for tag, attrs in page.elements if "http-equiv" in attrs)
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_the_curves_lie_beside_the_report(finished):
    assert (finished.parent / "training_curves.png").read_bytes().startswith(b"\x89PNG")
    assert not list(finished.parent.glob(".tmp-*"))


PAYLOADS = (
    "<script>alert(1)</script>",
    "</style></pre></td><img src=x onerror=alert(1)>",
    "\"' onmouseover=alert(1) x='",
    "a\x00b\x1b[31m\x9b\u202e\u2066\ud800 end",
)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_nothing_a_run_says_becomes_markup(tmp_path, payload):
    page, text = read(write_report(hostile_run(tmp_path, payload)))
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert "img" not in [tag for tag, _ in page.elements]
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    shown = re.sub("[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", "\ufffd", payload)
    assert text.count(shown) >= 8


def test_a_partial_run_without_evaluations(tmp_path):
    page, text = read(write_report(online_run(tmp_path, steps=30, finished=False, evals=False)))
    assert "20 of 30 steps" in text
    assert "not finished" in text
    assert "No evaluation yet." in text
    assert "Before and after" not in text
    assert len(page.having("chart")) == 12


def test_a_partial_run_with_evaluations_shows_what_is_known(tmp_path):
    _, text = read(write_report(online_run(tmp_path, steps=30, finished=False)))
    assert "Before and after" in text
    assert "95 % intervals" in text


def test_a_run_that_has_just_begun(tmp_path):
    run = RunDirectory.create(tmp_path, "new", "steps: 5\n", path=tmp_path / "20260101-000000-new")
    run.close()
    page, text = read(write_report(run.path))
    assert "0 of 5 steps" in text
    assert "Nothing is recorded yet" in text
    assert page.having("chart") == []


def test_a_supervised_run_has_its_loss_as_headline(tmp_path):
    page, text = read(write_report(supervised_run(tmp_path)))
    assert "Held-out loss" in text
    assert "2.82" in text
    assert "0.464" in text
    assert "Held-out accuracy" not in text
    assert page.having("group") == []


def test_tokens_of_unknown_text_are_a_strip_and_recorded_pieces_are_used(tmp_path):
    run = RunDirectory.create(tmp_path, "bpe", "steps: 1\n", path=tmp_path / "bpe")
    row = {"id": "a", "prompt": "p", "text": "hello world", "finish": "stop", "version": 0, "reward": 1.0, "parts": {}}
    row |= {
        "tokens": [5, 6, 7, 2],
        "mask": [False, True, True, True],
        "logprobs": [0.0, -0.5, -3.0, 0.0],
        "advantage": 0.5,
    }
    with run:
        run.record(1, [row, row | {"id": "b", "pieces": ["hello", " world", ""]}])
    page, _ = read(write_report(run.path))
    strip = [
        attrs["title"]
        for tag, attrs in page.elements
        if tag == "span" and (attrs.get("title") or "").startswith("token")
    ]
    assert strip == [
        "token 6: log-prob -0.500 (60.7 %)",
        "token 7: log-prob -3.000 (5.0 %)",
        "token 2: log-prob 0.000 (100.0 %)",
    ]
    assert [attrs["class"] for attrs in page.having("token")] == ["token h1", "token h6"]


def test_the_report_can_be_written_again_and_is_the_same(finished):
    before = finished.read_bytes()
    assert write_report(finished.parent).read_bytes() == before


def test_wrong_places_are_one_line(tmp_path):
    with pytest.raises(UserError, match="not a run directory"):
        write_report(tmp_path / "nowhere")
    path = online_run(tmp_path, steps=10)
    (path / "report.html").mkdir()
    with pytest.raises(RunFailed, match="cannot write the report") as caught:
        write_report(path)
    assert "\n" not in str(caught.value)


def test_values_are_escaped_and_what_a_macro_wrote_is_not_escaped_twice():
    template = ENVIRONMENT.from_string(
        '{% macro bold(text) %}<b>{{ text }}</b>{% endmacro %}<p title="{{ value }}">{{ bold(value) }}{{ 3 }}</p>'
    )
    written = template.render(value="1 < \"2\" & '3'\x1b")
    escaped = "1 &lt; &#34;2&#34; &amp; &#39;3&#39;\ufffd"
    assert written == f'<p title="{escaped}"><b>{escaped}</b>3</p>'


def test_a_value_that_a_template_needs_cannot_be_forgotten():
    with pytest.raises(UndefinedError, match="absent"):
        ENVIRONMENT.from_string("{{ absent }}").render()

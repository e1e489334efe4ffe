"""What a user's code may use up in its worker, and what it may see: time, memory, the environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.errors import RunFailed, UserError
from whet.records import Example
from whet.tasks.grading.failures import GradingFailed
from whet.tasks.grading.graders import WorkerGrader, make_grader
from whet.tasks.grading.process import is_secret, withheld, worker_environment

REWARDS = r"""
import os, resource, signal, time

def nap_1(completions, **columns): time.sleep(0.25); return [1.0] * len(completions)
nap_2 = nap_3 = nap_4 = nap_5 = nap_1
def big(completions, **columns): return [float(len(bytearray(3 * 10**8))) if c == "bad" else 0.0 for c in completions]
def small(completions, **columns):  # objects so small that the last bytes are used up
    objects = [None] * 4_000_000
    for place in range(len(objects) if "bad" in completions else 0): objects[place] = bytes(100)
    return [0.0] * len(completions)
def torch_like(completions, **columns): raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")
def complains(completions, **columns): raise ValueError("the answer says: cannot allocate memory")
def limits(completions, **columns): return [float(limit) for limit in resource.getrlimit(resource.RLIMIT_DATA)]
def aborts(completions, **columns): os.abort()
def reserves(completions, **columns):  # addresses, as CUDA does, but no memory
    import mmap
    mmap.mmap(-1, 2**38, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.PROT_READ)
    return [1.0] * len(completions)
def leaves_alarm(completions, **columns):  # which ends a process that does not handle it
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    return [1.0] * len(completions)
def raises_with_alarm(completions, **columns):
    signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    if "bad" in completions: raise ValueError("mine")
    return [1.0] * len(completions)
def needy(completions, **columns): return [float(len(os.environ["OPENAI_API_KEY"]))] * len(completions)
def seen(completions, **columns): return [float(name in os.environ) for name in completions]
"""
TASK = """
import time
from whet.records import Score
class Slow:
    name = "slow"
    def draw(self, count, *, seed): return []
    def held_out(self, count): return []
    def correct(self, example, text): return True
    def score(self, example, text):
        time.sleep(0.25)
        return Score(reward=1.0, parts={})
"""


def rows(count: int) -> list[Example]:
    return [Example(id=f"e{i}", prompt="p", answer="a") for i in range(count)]


Make = Callable[..., WorkerGrader]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    (tmp_path / "rewards.py").write_text(REWARDS)
    graders: list[WorkerGrader] = []

    def make(*names: str, seconds: float = 20.0, **limits: Any) -> WorkerGrader:
        rewards = [(f"{tmp_path / 'rewards.py'}:{name}", 1.0) for name in names]
        graders.append(WorkerGrader("arithmetic", {}, rewards, time_limit_seconds=seconds, **limits))
        return graders[-1]

    yield make
    for grader in graders:
        grader.close()


def test_the_time_of_a_batch_does_not_begin_again_with_every_row(tmp_path: Path) -> None:
    """Eight rows of 0.25 s, each well within the limit of 0.6 s that all of them have."""
    (tmp_path / "slow.py").write_text(TASK)
    grader = make_grader(f"{tmp_path / 'slow.py'}:Slow", {}, [], 0.6)
    with pytest.raises(
        GradingFailed, match=r"the score of task .*Slow took longer than 0.6 s and was stopped"
    ) as caught:
        grader.grade(rows(8), ["a"] * 8)
    grader.close()
    assert int(caught.value.example.id[1:]) <= 2  # where it was: the third row would end after 0.75 s


def test_nor_with_every_function(make: Make) -> None:
    with pytest.raises(GradingFailed, match=r"reward function nap_[23] took longer than 0.6 s and was stopped"):
        make("nap_1", "nap_2", "nap_3", "nap_4", "nap_5", seconds=0.6).grade(rows(1), ["a"])


@pytest.mark.parametrize("name", ["big", "small"])
def test_too_much_memory_names_function_row_and_limit(make: Make, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    grader = make(name, memory_limit_gb=0.2)
    told = f"reward function {name} needs more memory than its limit of 0.2 GB: raise reward.memory_limit_gb"
    with pytest.raises(GradingFailed, match=told) as caught:
        grader.grade(rows(3), ["a", "bad", "bad"])
    assert (caught.value.example.id, caught.value.text) == ("e1", "bad")
    assert grader.grade(rows(1), ["a"])[0].reward == 0.0  # a new worker serves the next batch
    assert "Traceback" not in capfd.readouterr().err


def test_without_a_limit_memory_is_the_machines(make: Make) -> None:
    assert make("big").grade(rows(1), ["bad"])[0].reward == 3e8


def test_memory_that_libraries_refuse_in_their_own_way(make: Make) -> None:
    with pytest.raises(GradingFailed, match=r"reward function torch_like needs more memory than its limit of 3 GB"):
        make("torch_like", memory_limit_gb=3.0).grade(rows(1), ["a"])
    with pytest.raises(GradingFailed, match=r"reward function torch_like ran out of memory"):
        make("torch_like").grade(rows(1), ["a"])
    with pytest.raises(GradingFailed, match=r"killed by SIGABRT \(if memory was short: .*memory_limit_gb = 3\)"):
        make("aborts", memory_limit_gb=3.0).grade(rows(1), ["a"])


def test_a_message_about_memory_is_not_the_end_of_it(make: Make) -> None:
    with pytest.raises(GradingFailed, match="in complains: ValueError: the answer says: cannot allocate memory"):
        make("complains", memory_limit_gb=3.0).grade(rows(1), ["a"])


def test_a_reward_cannot_raise_its_limit_again(make: Make) -> None:
    """Neither the limit itself nor the one up to which a process may raise it is higher."""
    assert [s.reward for s in make("limits", memory_limit_gb=1.0).grade(rows(2), ["a", "b"])] == [1e9, 1e9]


@pytest.mark.parametrize("name", ["leaves_alarm", "raises_with_alarm"])
def test_an_alarm_ends_with_the_function_that_set_it(make: Make, name: str) -> None:
    """It would go off in the next function, or while the worker waits for the next batch."""
    grader = make(name, "nap_1")
    assert [s.reward for s in grader.grade(rows(1), ["a"])] == [2.0]
    if name == "raises_with_alarm":
        with pytest.raises(GradingFailed, match="in raises_with_alarm: ValueError: mine"):
            grader.grade(rows(1), ["bad"])
    time.sleep(0.2)
    assert [s.reward for s in grader.grade(rows(1), ["a"])] == [2.0]


def test_an_alarm_of_a_task_ends_with_its_score(tmp_path: Path) -> None:
    late = TASK.replace("time.sleep(0.25)", "import signal; signal.setitimer(signal.ITIMER_REAL, 0.05)")
    (tmp_path / "late.py").write_text(late)
    grader = make_grader(f"{tmp_path / 'late.py'}:Slow", {}, [], 20.0)
    for _ in range(2):
        assert [s.reward for s in grader.grade(rows(2), ["a", "b"])] == [1.0, 1.0]
        time.sleep(0.1)
    grader.close()


def test_addresses_without_memory_do_not_count(make: Make) -> None:
    """256 GiB that are only reserved, under a limit of 1 GB: CUDA and torch do that."""
    assert make("reserves", memory_limit_gb=1.0).grade(rows(1), ["a"])[0].reward == 1.0


def test_a_module_that_needs_too_much_memory(tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text("table = bytearray(3 * 10**8)\ndef f(completions): return [1.0]")
    told = r"the worker that loads reward function .*heavy.py:f needs more memory than its limit of 0.2 GB: raise"
    with pytest.raises(RunFailed, match=told):
        make_grader("arithmetic", {}, [(f"{tmp_path / 'heavy.py'}:f", 1.0)], 5.0, memory_limit_gb=0.2)


def test_secrets_stay_outside_unless_they_are_named(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("Some_Password", "p")
    monkeypatch.setenv("PLAIN_SETTING", "s")
    names = ["OPENAI_API_KEY", "Some_Password", "PLAIN_SETTING", "PATH"]
    assert [s.reward for s in make("seen").grade(rows(4), names)] == [0.0, 0.0, 1.0, 1.0]
    told = make("seen", environment=["OPENAI_API_KEY"])
    assert [s.reward for s in told.grade(rows(4), names)] == [1.0, 0.0, 1.0, 1.0]


def test_a_secret_that_is_missed_is_named_with_the_key_that_passes_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "12345")
    told = r"in \w+: KeyError: 'OPENAI_API_KEY'; OPENAI_API_KEY looks like a secret.*name it in reward\.environment"
    with pytest.raises(GradingFailed, match=told):
        make("needy").grade(rows(1), ["a"])
    assert [s.reward for s in make("needy", environment=["OPENAI_API_KEY"]).grade(rows(1), ["a"])] == [5.0]


def test_a_variable_that_is_not_set_is_the_users_error(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    told = (
        "reward.environment names OPENAI_APIKEY, which is not set; did you mean 'OPENAI_API_KEY'?: export or remove it"
    )
    with pytest.raises(UserError, match=told.replace("?", r"\?")):
        make("seen", environment=["OPENAI_APIKEY"])
    assert worker_environment({"A_TOKEN": "1", "B": "2"}, ["B"]) == {"B": "2"}


def test_only_the_very_name_passes_a_secret() -> None:
    there = {"HF_TOKEN": "1", "MY_HF_TOKEN": "2", "HF_TOKEN_2": "3", "TOKEN": "4", "hf_token": "5", "HOME": "6"}
    assert worker_environment(there, ["HF_TOKEN"]) == {"HF_TOKEN": "1", "HOME": "6"}
    assert withheld(there, ["HF_TOKEN"]) == ["HF_TOKEN_2", "MY_HF_TOKEN", "TOKEN", "hf_token"]


SECRETS = """
HF_TOKEN HUGGING_FACE_HUB_TOKEN WANDB_API_KEY OPENAI_API_KEY hf_token Api_Key MYAPIKEY AWS_PROFILE AWS_SECRET_ACCESS_KEY
GOOGLE_APPLICATION_CREDENTIALS AZURE_CLIENT_ID PGPASSWORD DB_PASSWORD_FILE MYSQL_PASSWD GITHUB_PAT TOKEN SECRET
CLIENT_SECRET SLACK_TOKENS SSH_AUTH_SOCK DATABASE_URL SENTRY_DSN SMTP_PASS KEY_PASSPHRASE
API_KEY2 HF_TOKEN1 SECRET1 CLIENTSECRET ACCESSKEY AUTHTOKEN MYSQL_PWD DB_PW REDIS_URL MONGODB_URI SLACK_WEBHOOK_URL JWT
DOCKER_AUTH_CONFIG MAX_SECRET_KEY
"""
NEEDED = """
PATH HOME LANG PYTHONPATH PYTHONHASHSEED TOKENIZERS_PARALLELISM KEYBOARD_LAYOUT OMP_NUM_THREADS CUDA_VISIBLE_DEVICES
RANK WORLD_SIZE HF_HOME HF_HUB_OFFLINE http_proxy NO_PROXY COMPASS BYPASS_CACHE MONKEY SPATIAL XDG_RUNTIME_DIR
PWD OLDPWD MAX_TOKENS JUDGE_MAX_TOKENS TOKEN_LIMIT EOS_TOKEN SORT_KEY PASS_AT_K AWS_REGION AWS_DEFAULT_REGION BASE_URL
AWS_CA_BUNDLE REQUESTS_CA_BUNDLE CURL_CA_BUNDLE SSL_CERT_FILE SSL_CERT_DIR
"""


def test_secrets_are_known_by_their_names() -> None:
    assert [name for name in SECRETS.split() if not is_secret(name)] == []
    assert [name for name in NEEDED.split() if is_secret(name)] == []

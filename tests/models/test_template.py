"""Chat templates that are broken or hostile: bounded, refused in one sentence, and blamed on whoever did it."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.models.chats import chat, system, user
from whet import limited_process
from whet.errors import UserError
from whet.models.text import template
from whet.models.text.template import BrokenTemplate, render_template
from whet.models.text.tokenizers import load_tokenizer

TURNS = [user("ab"), system("cd")]


def rendered(source, messages=TURNS, **variables):
    return render_template(source, messages, variables, add_generation_prompt=True, owner="DIR")


HOSTILE = {
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}": "of processor time",
    "{% for i in range(100000) %}{% for m in messages * 100000 %}{{ '' }}{% endfor %}{% endfor %}": "of processor time",
    "{{ messages|length ** 99999999999 }}{{ 3 ** 3 ** 3 ** 3 ** 3 }}": "of processor time",
    "{{ ('a' * 40000 + 'b') | replace('a', 'a' * 40000) }}": "1024 MiB of memory",
    "{% for i in range(10**12) %}{% endfor %}": "Range too big",
    "{{ 'a' * 10**10 }}": "1024 MiB of memory",
    "{{ 'a' | center(10**10) }}": "1024 MiB of memory",
    "{{ '%10000000000d' % 1 }}": "1024 MiB of memory",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}": "of (memory|proc)",
    "{% for i in range(9999) %}{{ 'a' * 9999 }}{% endfor %}": r"it writes more than 1048\d+ characters",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "it calls itself without end",
    "{% set a = [] %}{{ a.append(a) }}": "line 1: ",
    "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}": "nested too deeply",
    "{% if 1 %}" * 400 + "{% endif %}" * 400: "nested too deeply|cannot be compiled",
    "a" * 2**20 + "b": "has 1048577 characters, more than 1048576",
    "{{ ''.__class__.__mro__ }}{{ ''.__class__()() }}": "unsafe",
    "{{ messages.__class__.__base__.__subclasses__() }}": "unsafe",
    "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['x'] }}": "unsafe",
    "{{ namespace(__init__=1) }}": "begin with an underscore",
    "{{ strftime_now.__globals__.sys }}": "unsafe",
    "one\ntwo\n{% if %}": "line 3: Expected an expression",
    "{{ messages | nosuchfilter }}": "line 1: No filter named 'nosuchfilter'",
    "{% include '/etc/passwd' %}": "no loader",
}


@pytest.mark.parametrize("source", HOSTILE, ids=[source[:40] for source in HOSTILE])
def test_hostile_templates_end_in_a_sentence(source, monkeypatch):
    monkeypatch.setattr(template, "SECONDS", 0.15)
    with pytest.raises(UserError, match=HOSTILE[source]) as caught:
        rendered(source)
    assert str(caught.value).startswith("the chat template of DIR")
    assert "change the messages" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert rendered("{{ messages[0].content }}") == "ab"  # and the next one is rendered as if nothing had been


def test_a_template_that_refuses_says_why_in_its_own_words():
    refuses = "{% if messages[1].role == 'system' %}{{ raise_exception('System role comes first!') }}{% endif %}"
    told = r"the chat template of DIR refuses the roles \[user, system\]: line 1: System role comes first!; change the"
    with pytest.raises(UserError, match=told) as caught:
        rendered(refuses)
    assert not isinstance(caught.value, BrokenTemplate)


def test_a_mistake_in_a_template_is_not_blamed_on_the_messages():
    with pytest.raises(UserError, match=r"the chat template of DIR: line 2: .*unsupported operand"):
        rendered("{{ messages[0].role }}\n{{ 1 + messages }}")
    with pytest.raises(UserError, match=r"line 2: .*has no attribute 'text'"):
        rendered("\n{{ messages[0].text.more }}")


def test_a_broken_template_is_refused_when_it_is_loaded(tmp_path):
    chat().save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}\n{{ m.content }")
    with pytest.raises(UserError, match=f"the chat template of {tmp_path}: line 2: "):
        load_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('only tools') }}")
    load_tokenizer(tmp_path).prompt("ab")  # it may refuse the messages that were tried, and still be sound
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content[0].text.x }}")
    load_tokenizer(tmp_path).prompt("ab")


REAL = [
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "{{ bos_token }}{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}\n  {%- for m in messages %}\n"
    "    {%- if loop.first and m.role != 'user' %}{% continue %}{% endif %}\n"
    "    {% generation %}{{ m.content | trim }}{% endgeneration %}\n  {%- endfor %}\n\n",
    "{%- set ns = namespace(n=0, last='') -%}{%- for m in messages[::-1] %}{% set ns.n = ns.n + 1 %}"
    "{% set ns.last = m.content.split('</think>')[-1].lstrip('\n') %}{% endfor %}{{ ns.n }} {{ ns.last }}"
    "{{ dict(a=1) | tojson }}{{ messages | tojson }}\n\n",
    "{% macro show(m) %}[{{ m.role | upper }}|{{ m.get('content', '') }}]{% endmacro %}"
    "{% for m in messages %}{{ show(m) }}{% if loop.index0 == 3 %}{% break %}{% endif %}{% endfor %}"
    "{% if documents is defined and documents %}x{% endif %}{{ eos_token }}{{ '<é 漢&>' }}",
]


@pytest.mark.parametrize("source", REAL)
def test_sound_templates_are_rendered_as_transformers_renders_them(source):
    hf = chat()._hf
    turns = [user(" ab\n"), system("<b>&amp; 漢 \ud800"), user("c" * 5000)]
    plain = [{"role": turn.role, "content": turn.content} for turn in turns]
    for asked in (True, False):
        expected = hf.apply_chat_template(plain, chat_template=source, tokenize=False, add_generation_prompt=asked)
        found = render_template(source, turns, hf.special_tokens_map, add_generation_prompt=asked, owner="")
        assert found == expected


def test_our_own_template_needs_no_process(monkeypatch):
    monkeypatch.setattr(template, "_RENDERER", None)
    assert rendered(template.PLAIN_TEMPLATE) == "ab\ncd"


def test_it_is_what_jinja_makes_of_our_own_template():
    assert rendered(template.PLAIN_TEMPLATE + "{# #}", [user(" a\n"), system("")]) == " a\n\n"
    assert rendered(template.PLAIN_TEMPLATE, [user(" a\n"), system("")]) == " a\n\n"


def test_the_renderer_does_not_outlive_its_user():
    code = (
        "from whet.models.text import template\nfrom whet.records import Message\n"
        "template.render_template('{{ 1 }}', [Message(role='user', content='a')], {}, "
        "add_generation_prompt=True, owner='')\n"
        "print(template._RENDERER._process.pid, flush=True)\nimport os; os.kill(os.getpid(), 9)"
    )
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().split()[2] == "Z":
            return  # ended, and waits for whoever adopted it
        time.sleep(0.02)
    pytest.fail("the process that renders templates is still there")


def test_nothing_changes_by_itself():
    day = "{{ strftime_now('%d %b %Y') }}"
    assert rendered(day) == "26 Jul 2024"  # what Llama 3 writes where it cannot ask
    with pytest.raises(UserError, match="No filter named 'random'"):
        rendered("{{ messages | random }}")


def test_long_messages_have_room():
    long = [user("a" * 200_000)]
    assert len(rendered("{{ messages[0].content * 10 }}", long)) == 2_000_000
    with pytest.raises(UserError, match=r"it writes more than 4248576 characters"):
        rendered("{{ messages[0].content * 22 }}", long)


def test_a_renderer_that_was_killed_is_started_again():
    assert rendered("{{ 1 }}") == "1"
    process = template._RENDERER._process
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert rendered("{{ 2 }}", [user("a" * 100_000)]) == "2"
    assert template._RENDERER._process is not process


def test_a_renderer_that_stands_still_is_not_waited_for(monkeypatch):
    assert rendered("{{ 1 }}") == "1"
    os.kill(template._RENDERER._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(limited_process, "WAIT_SECONDS", 0.1)
    for content in ("a", "a" * 1_000_000):  # the second does not fit into the pipe
        with pytest.raises(UserError, match=r"the process that renders it does not answer within 0\.1 s"):
            rendered("{{ 1 }}", [user(content)])
        monkeypatch.setattr(limited_process, "WAIT_SECONDS", 60.0)
        assert rendered("{{ 2 }}") == "2"
        os.kill(template._RENDERER._process.pid, signal.SIGSTOP)
        monkeypatch.setattr(limited_process, "WAIT_SECONDS", 0.1)
    template._RENDERER.close()


def test_an_interrupted_question_is_not_answered_later(monkeypatch):
    assert rendered("{{ 1 }}") == "1"
    wait = limited_process._wait

    def interrupted(pipe, what, deadline):
        if what == select.POLLIN:
            raise KeyboardInterrupt
        wait(pipe, what, deadline)

    with monkeypatch.context() as patch:
        patch.setattr(limited_process, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rendered("{{ 2 }}")
    assert rendered("{{ 3 }}") == "3"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_question_has_a_renderer_of_its_own():
    assert rendered("{{ 1 }}") == "1"
    held = template._RENDERER._process.pid
    with template._RENDERER._lock:  # as another thread would
        child = os.fork()
        if not child:
            signal.alarm(20)
            is_right = rendered("{{ 2 }}") == "2" and template._RENDERER._process.pid != held
            template._RENDERER.close()
            os._exit(0 if is_right else 1)
        _, status = os.waitpid(child, 0)
    assert status == 0
    assert rendered("{{ 3 }}") == "3"
    assert template._RENDERER._process.pid == held


@pytest.mark.parametrize("place", ["chat_template.jinja", "additional_chat_templates/other.jinja"])
def test_large_template_files_and_pipes_are_not_read(tmp_path, place):
    chat().save(tmp_path)
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("a" * (2**22 + 1))
    with pytest.raises(UserError, match=f"{place} has 4194305 bytes, more than the 4194304 that are read"):
        load_tokenizer(tmp_path)
    (tmp_path / place).unlink()
    os.mkfifo(tmp_path / place)
    with pytest.raises(UserError, match=f"{place} is no regular file"):
        load_tokenizer(tmp_path)


def test_an_empty_template_is_no_template(tmp_path):
    chat().save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(" \n")
    with pytest.raises(UserError, match=f"the chat template of {tmp_path} is empty: write it, or remove it"):
        load_tokenizer(tmp_path)


def test_a_fork_while_another_thread_renders_does_not_block_the_child():
    """Another thread may be reading a reply at the moment of the fork; its locks are never released in the child."""
    slow = "{% for i in range(20000) %}{% for j in range(400) %}{% endfor %}{% endfor %}x"
    thread = threading.Thread(target=rendered, args=(slow,))
    assert rendered("warm") == "warm"
    thread.start()
    time.sleep(0.1)
    child = os.fork()
    if child == 0:
        os._exit(0 if rendered("child") == "child" else 1)
    deadline = time.monotonic() + 30
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    thread.join()
    assert ended == (child, 0)

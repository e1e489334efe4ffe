"""The first Ctrl-C is a request, the second one is an order."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from whet.runs.interrupt import Interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_quits(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    with Interrupt() as interrupt:
        assert not interrupt.requested
        os.kill(os.getpid(), number)
        assert interrupt.requested
        assert capfd.readouterr().err.strip().count("\n") == 0
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


def test_handlers_come_back_however_the_block_ends() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupt():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    with pytest.raises(ZeroDivisionError), Interrupt():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_may_use_it_without_effect() -> None:
    seen: list[bool] = []

    def work() -> None:
        with Interrupt() as interrupt:
            seen.append(interrupt.requested)

    thread = threading.Thread(target=work)
    before = signal.getsignal(signal.SIGINT)
    thread.start()
    thread.join()
    assert seen == [False]
    assert signal.getsignal(signal.SIGINT) is before


LOOP = """
import sys, time
from whet.runs.interrupt import Interrupt
with Interrupt() as interrupt:
    while not interrupt.requested:
        print("step", flush=True)
        time.sleep(0.3)  # the signal comes here; the step still ends
        print("end of step", flush=True)
print("saved")
"""


def test_a_real_process_ends_its_step_before_it_stops() -> None:
    child = subprocess.Popen([sys.executable, "-c", LOOP], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "step\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=20)
    assert child.returncode == 0
    assert out.splitlines() == ["end of step", "saved"]
    assert err.strip() == "SIGINT: stopping after this step; once more quits at once"

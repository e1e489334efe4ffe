#include "stop_signal.hpp"

#include <csignal>
#include <initializer_list>

namespace whet {

namespace {

volatile std::sig_atomic_t asked = 0;

void remember(int) { asked = 1; }

}  // namespace

void watch_stop_signals() {
    struct sigaction action{};
    action.sa_handler = remember;
    action.sa_flags = static_cast<int>(SA_RESETHAND);  // the second signal has its usual effect
    for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

bool stop_is_asked() { return asked != 0; }

}  // namespace whet

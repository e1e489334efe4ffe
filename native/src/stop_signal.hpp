// Ctrl-C and SIGTERM ask for a stop after the running step; a second one ends the process at once.
#pragma once

namespace whet {

void watch_stop_signals();
bool stop_is_asked();

}  // namespace whet

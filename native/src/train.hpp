// `whet-native train`: a run from random or given weights, or the rest of one.
#pragma once

#include "arguments.hpp"

namespace whet {

extern const Flags kTrainFlags;
int train_command(const Arguments& arguments);

}  // namespace whet

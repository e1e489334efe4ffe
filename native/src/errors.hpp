// The two kinds of mistakes that end the program with one line: wrong input (exit code 1) and wrong usage (2).
#pragma once

#include <stdexcept>
#include <string>

namespace whet {

// A file, a value or the machine is not as expected; the message says what, where, and how to fix it.
class InputError : public std::runtime_error {
   public:
    using std::runtime_error::runtime_error;
};

// The command line is wrong.
class UsageError : public std::runtime_error {
   public:
    using std::runtime_error::runtime_error;
};

}  // namespace whet

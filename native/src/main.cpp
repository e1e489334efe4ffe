// whet-native: trains, evaluates and samples a GPT-2 without Python.

#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>

#include "errors.hpp"
#include "evaluate.hpp"
#include "sample.hpp"
#include "text.hpp"
#include "train.hpp"

namespace whet {

namespace {

struct Command {
    const Flags& flags;
    std::function<int(const Arguments&)> run;
};

const std::map<std::string, Command>& commands() {
    static const std::map<std::string, Command> kCommands = {
        {"train", {kTrainFlags, train_command}},
        {"eval", {kEvalFlags, evaluate_command}},
        {"sample", {kSampleFlags, sample_command}},
    };
    return kCommands;
}

int run(const std::vector<std::string>& words) {
    std::vector<std::string> names;
    for (const auto& [name, command] : commands()) names.push_back(name);
    if (words.empty()) throw UsageError("a command is missing: choose " + joined(names, ", "));
    if (words[0] == "--help") {
        for (const auto& [name, command] : commands()) std::printf("%s\n", usage(name, command.flags).c_str());
        return 0;
    }
    const auto found = commands().find(words[0]);
    if (found == commands().end()) {
        const auto near = nearest(words[0], names);
        throw UsageError("unknown command " + in_quotes(words[0]) + ": " +
                         (near ? "did you mean " + *near + "?" : "choose " + joined(names, ", ")));
    }
    if (words.size() == 2 && words[1] == "--help") {
        std::printf("%s", usage(words[0], found->second.flags).c_str());
        return 0;
    }
    return found->second.run(Arguments(found->second.flags, {words.begin() + 1, words.end()}));
}

int fail(int code, const std::string& message) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", printable(message).c_str());
    return code;
}

constexpr const char* kNoMemory = "out of memory: use a smaller model, --batch or --micro-batch";

// What libtorch says, without its stack; the CPU's allocator has no error class of its own.
std::string short_text(const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const bool is_memory = text.find("DefaultCPUAllocator") != std::string::npos;
    return is_memory ? kNoMemory : text.substr(0, text.find('\n'));
}

}  // namespace

}  // namespace whet

int guarded(int count, char** words) {
    try {
        return whet::run({words + 1, words + count});
    } catch (const whet::UsageError& error) {
        return whet::fail(2, error.what());
    } catch (const whet::InputError& error) {
        return whet::fail(1, error.what());
    } catch (const c10::OutOfMemoryError&) {
        return whet::fail(1, whet::kNoMemory);
    } catch (const c10::Error& error) {
        return whet::fail(1, whet::short_text(error));
    } catch (const std::bad_alloc&) {
        return whet::fail(1, whet::kNoMemory);
    } catch (const std::exception& error) {
        return whet::fail(1, error.what());
    }
}

int main(int count, char** words) {
    // Tensors of a step are freed and allocated again at every step: the process keeps their memory instead of mapping
    // and clearing new pages each time.
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    const int code = guarded(count, words);
    // Without the destructors of static objects: those of libtorch may run after CUDA's own have freed the device, and
    // crash a program whose work is done. Every file is closed by now.
    std::fflush(nullptr);
    std::_Exit(code);
}

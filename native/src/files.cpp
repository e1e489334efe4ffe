#include "files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "errors.hpp"

namespace whet {

namespace {

constexpr mode_t kMode = 0644;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
    throw InputError(path + " cannot be " + what + ": " + std::strerror(errno));
}

void check(const std::error_code& error, const std::string& path, const std::string& what) {
    if (error) throw InputError(path + " cannot be " + what + ": " + error.message());
}

}  // namespace

File::File(std::string path, int flags, const char* purpose)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), flags | O_CLOEXEC, kMode)) {
    if (descriptor_ < 0) fail(path_, purpose);
}

File File::open_to_read(const std::string& path) {
    File file(path, O_RDONLY | O_NONBLOCK, "read");  // a pipe would block before it can be refused
    struct stat facts{};
    if (::fstat(file.descriptor_, &facts) != 0) fail(path, "read");
    if (!S_ISREG(facts.st_mode)) throw InputError(path + " is no regular file");
    return file;
}

File File::open_to_write(const std::string& path) { return {path, O_WRONLY | O_CREAT | O_TRUNC, "written"}; }

File File::open_to_append(const std::string& path) { return {path, O_WRONLY | O_CREAT | O_APPEND, "written"}; }

File::File(File&& other) noexcept : path_(std::move(other.path_)), descriptor_(other.descriptor_) {
    other.descriptor_ = -1;
}

File::~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

int64_t File::size() const {
    struct stat facts{};
    if (::fstat(descriptor_, &facts) != 0) fail(path_, "read");
    return facts.st_size;
}

void File::read_at(int64_t offset, void* buffer, int64_t bytes) const {
    auto* target = static_cast<char*>(buffer);
    while (bytes > 0) {
        const ssize_t got = ::pread(descriptor_, target, static_cast<size_t>(bytes), offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail(path_, "read");
        if (got == 0) throw InputError(path_ + " is truncated: it ends before byte " + std::to_string(offset + bytes));
        target += got;
        offset += got;
        bytes -= got;
    }
}

void File::write(const void* bytes, int64_t count) const {
    const auto* source = static_cast<const char*>(bytes);
    while (count > 0) {
        const ssize_t put = ::write(descriptor_, source, static_cast<size_t>(count));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) fail(path_, "written");
        source += put;
        count -= put;
    }
}

void File::truncate(int64_t bytes) const {
    if (::ftruncate(descriptor_, bytes) != 0) fail(path_, "shortened");
}

void File::sync() const {
    if (::fsync(descriptor_) != 0) fail(path_, "written to the disk");
}

bool File::lock() const { return ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0; }

std::string read_text(const std::string& path, int64_t most_bytes) {
    const File file = File::open_to_read(path);
    const int64_t size = file.size();
    if (size > most_bytes) {
        throw InputError(path + " has " + std::to_string(size) + " bytes: expected at most " +
                         std::to_string(most_bytes));
    }
    std::string text(static_cast<size_t>(size), '\0');
    file.read_at(0, text.data(), size);
    return text;
}

void write_text(const std::string& path, std::string_view text) {
    const std::string partial = path + ".partial";
    {
        const File file = File::open_to_write(partial);
        file.write(text);
        file.sync();
    }
    rename_path(partial, path);
}

void sync_directory(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) fail(path, "read");
    const bool is_synced = ::fsync(descriptor) == 0;
    ::close(descriptor);
    if (!is_synced) fail(path, "written to the disk");
}

void make_directories(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    check(error, path, "made");
}

void remove_all(const std::string& path) {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    check(error, path, "removed");
}

void rename_path(const std::string& from, const std::string& to) {
    std::error_code error;
    std::filesystem::rename(from, to, error);
    check(error, from, "renamed to " + to);
}

}  // namespace whet

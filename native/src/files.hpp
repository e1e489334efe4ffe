// Files: whole reads, reads at an offset, writes that are on the disk when they return.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace whet {

// An open file; closed with the object.
class File {
   public:
    static File open_to_read(const std::string& path);    // a regular file
    static File open_to_write(const std::string& path);   // created, or emptied
    static File open_to_append(const std::string& path);  // created if absent
    ~File();
    File(File&& other) noexcept;
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    File& operator=(File&&) = delete;

    const std::string& path() const { return path_; }
    int64_t size() const;

    // Fills the whole buffer, or throws an InputError.
    void read_at(int64_t offset, void* buffer, int64_t bytes) const;
    void write(const void* bytes, int64_t count) const;
    void write(std::string_view text) const { write(text.data(), static_cast<int64_t>(text.size())); }
    void truncate(int64_t bytes) const;
    void sync() const;

    // Whether this process now has the file for itself, until it is closed.
    bool lock() const;

   private:
    File(std::string path, int flags, const char* purpose);

    std::string path_;
    int descriptor_;
};

// A file of at most so many bytes.
std::string read_text(const std::string& path, int64_t most_bytes);

// Replaces a file by a complete one: a reader or a crash sees the old or the new content, never a part.
void write_text(const std::string& path, std::string_view text);

// Makes the names in a directory durable.
void sync_directory(const std::string& path);

void make_directories(const std::string& path);
void remove_all(const std::string& path);
void rename_path(const std::string& from, const std::string& to);

}  // namespace whet

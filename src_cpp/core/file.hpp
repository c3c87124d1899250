#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <system_error>

namespace nexus {

// The operating system refused a file; carries its error number and the path.
class FileError : public std::system_error {
  public:
    FileError(int error_number, std::string path)
        : std::system_error(error_number, std::generic_category(), path), path_(std::move(path)) {}
    [[nodiscard]] const std::string& path() const noexcept { return path_; }

  private:
    std::string path_;
};

// A whole file mapped for reading. Writers of this project replace files and never change them in place, so
// a mapping stays what it was.
class MappedFile {
  public:
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
    MappedFile(MappedFile&&) = delete;
    MappedFile& operator=(MappedFile&&) = delete;

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

  private:
    std::span<const std::byte> bytes_;
};

// A file that appears under its name only when `commit` returns; without it nothing is left behind.
class AtomicFile {
  public:
    // `n_bytes` is the final size; what is never written reads as zero and takes no space.
    AtomicFile(std::string path, std::size_t n_bytes);
    ~AtomicFile();
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;
    AtomicFile(AtomicFile&&) = delete;
    AtomicFile& operator=(AtomicFile&&) = delete;

    void write_at(std::size_t offset, std::span<const std::byte> bytes);
    void commit();

  private:
    [[noreturn]] void fail(int error_number);

    std::string path_;
    std::string temporary_;
    int descriptor_ = -1;
};

}  // namespace nexus

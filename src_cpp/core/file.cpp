#include "core/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <utility>

namespace nexus {
namespace {

// Closes a descriptor when a scope ends.
class Descriptor {
  public:
    explicit Descriptor(int number) noexcept : number_(number) {}
    ~Descriptor() {
        if (number_ >= 0) {
            close(number_);
        }
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    Descriptor(Descriptor&&) = delete;
    Descriptor& operator=(Descriptor&&) = delete;
    [[nodiscard]] int get() const noexcept { return number_; }

  private:
    int number_;
};

// Two writers of one path, in one process or in two, get different names.
std::string temporary_beside(const std::string& path) {
    static std::atomic<std::uint64_t> counter{0};
    const std::filesystem::path target(path);
    std::string name(".");
    name.append(target.filename().string());
    name.append(".").append(std::to_string(getpid()));
    name.append(".").append(std::to_string(counter.fetch_add(1))).append(".tmp");
    return (target.parent_path() / name).string();
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
    const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (file.get() < 0 || fstat(file.get(), &status) != 0) {
        throw FileError(errno, path);
    }
    if (!S_ISREG(status.st_mode)) {
        throw FileError(S_ISDIR(status.st_mode) ? EISDIR : EINVAL, path);
    }
    const auto n_bytes = static_cast<std::size_t>(status.st_size);
    if (n_bytes == 0) {
        return;  // an empty file cannot be mapped, and needs no mapping
    }
    const void* region = mmap(nullptr, n_bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (region == MAP_FAILED) {
        throw FileError(errno, path);
    }
    bytes_ = {static_cast<const std::byte*>(region), n_bytes};
}

MappedFile::~MappedFile() {
    if (!bytes_.empty()) {
        munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
    }
}

AtomicFile::AtomicFile(std::string path, std::size_t n_bytes)
    : path_(std::move(path)), temporary_(temporary_beside(path_)) {
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0) {
        throw FileError(errno, path_);
    }
    if (ftruncate(descriptor_, static_cast<off_t>(n_bytes)) != 0) {
        fail(errno);
    }
}

AtomicFile::~AtomicFile() {
    if (descriptor_ >= 0) {
        close(descriptor_);
        unlink(temporary_.c_str());
    }
}

void AtomicFile::fail(int error_number) {
    close(std::exchange(descriptor_, -1));
    unlink(temporary_.c_str());
    throw FileError(error_number, path_);
}

void AtomicFile::write_at(std::size_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t written = pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (written < 0) {
            if (errno == EINTR) {
                continue;
            }
            fail(errno);
        }
        bytes = bytes.subspan(static_cast<std::size_t>(written));
        offset += static_cast<std::size_t>(written);
    }
}

void AtomicFile::commit() {
    if (fsync(descriptor_) != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) {
        fail(errno);
    }
    close(std::exchange(descriptor_, -1));
    // The rename itself lasts once the folder is on disk; a file system that cannot do that is no reason to
    // fail.
    const auto folder = std::filesystem::path(path_).parent_path();
    const Descriptor directory(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC));
    if (directory.get() >= 0) {
        fsync(directory.get());
    }
}

}  // namespace nexus

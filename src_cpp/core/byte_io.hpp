#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "core/errors.hpp"

namespace nexus {

// Reads little-endian fields in order and refuses to pass the end. The product runs on little-endian hosts
// only (CMake checks), so a field is a plain copy.
class ByteReader {
  public:
    explicit ByteReader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

    [[nodiscard]] std::size_t offset() const noexcept { return offset_; }
    [[nodiscard]] std::size_t remaining() const noexcept { return bytes_.size() - offset_; }

    template <typename T>
    requires std::is_trivially_copyable_v<T> T read(const char* field) {
        need(field, sizeof(T));
        T value;
        std::memcpy(&value, bytes_.data() + offset_, sizeof(T));
        offset_ += sizeof(T);
        return value;
    }

    void skip(const char* field, std::size_t n_bytes) {
        need(field, n_bytes);
        offset_ += n_bytes;
    }

  private:
    void need(const char* field, std::size_t n_bytes) const {
        if (n_bytes > remaining()) {
            throw FormatError(field, std::to_string(n_bytes) + " more bytes",
                              std::to_string(remaining()) + " (truncated)");
        }
    }

    std::span<const std::byte> bytes_;
    std::size_t offset_ = 0;
};

// Writes fields in order into memory whose size the caller has computed.
class ByteWriter {
  public:
    explicit ByteWriter(std::span<std::byte> bytes) noexcept : bytes_(bytes) {}

    [[nodiscard]] std::size_t offset() const noexcept { return offset_; }

    template <typename T>
    requires std::is_trivially_copyable_v<T>
    void write(const T& value) { std::memcpy(take(sizeof(T)), &value, sizeof(T)); }

    // Space for `n_bytes` that the caller fills.
    std::byte* take(std::size_t n_bytes) {
        if (n_bytes > bytes_.size() - offset_) {
            throw std::invalid_argument("the output buffer is too small");
        }
        std::byte* place = bytes_.data() + offset_;
        offset_ += n_bytes;
        return place;
    }

  private:
    std::span<std::byte> bytes_;
    std::size_t offset_ = 0;
};

}  // namespace nexus

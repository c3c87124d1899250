#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace nexus {

// SHA-256 (FIPS 180-4) over a stream of pieces.
class Sha256 {
  public:
    static constexpr std::size_t kDigestBytes = 32;
    using Digest = std::array<std::byte, kDigestBytes>;
    enum class Implementation : std::uint8_t { kFastest, kPortable };

    explicit Sha256(Implementation implementation = Implementation::kFastest) noexcept;
    void update(std::span<const std::byte> bytes) noexcept;
    // Ends the stream; the object is of no further use.
    Digest finish() noexcept;

  private:
    static constexpr std::size_t kBlockBytes = 64;
    using State = std::array<std::uint32_t, 8>;
    using Compress = void (*)(State& state, const std::byte* block, std::size_t n_blocks) noexcept;

    Compress compress_;
    State state_ = {0x6A09E667U, 0xBB67AE85U, 0x3C6EF372U, 0xA54FF53AU,
                    0x510E527FU, 0x9B05688CU, 0x1F83D9ABU, 0x5BE0CD19U};
    std::array<std::byte, kBlockBytes> pending_{};
    std::size_t n_pending_ = 0;
    std::uint64_t n_bytes_ = 0;
};

// The first N bytes of a digest, where a shorter name is enough.
template <std::size_t N>
std::array<std::byte, N> shortened(const Sha256::Digest& digest) noexcept {
    static_assert(N <= Sha256::kDigestBytes);
    std::array<std::byte, N> result;
    for (std::size_t i = 0; i < N; ++i) {
        result[i] = digest[i];
    }
    return result;
}

}  // namespace nexus

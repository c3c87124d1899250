#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/file.hpp"
#include "core/half.hpp"
#include "core/rope.hpp"

namespace nexus {

// A precompiled tool block (.atb): header, tokens, then K and V of every layer.
//
//   bytes        content
//   0   .. 127   header, little endian, fields in the order of BlockHeader
//   128 ..       tokens, i32 [n_tokens]
//   after them   in version 2, the tokens' sensitivity to the context, f32 [n_tokens]
//   k_offset     K, f16 [n_layer, n_tokens, k_row_bytes / 2], at the next multiple of 2 MB
//   v_offset     V, f16 [n_layer, n_tokens, v_row_bytes / 2], at the next multiple of 2 MB; always in rows
//
// The gaps are holes that take no space. Rotations and positions refer to `anchor`: token i was computed at
// position anchor + i.
struct BlockHeader {
    static constexpr std::size_t kBytes = 128;
    static constexpr std::size_t kAlignment = std::size_t{2} << 20U;
    static constexpr std::array<char, 8> kMagic = {'N', 'E', 'X', 'U', 'S', 'A', 'T', 'B'};
    static constexpr std::uint32_t kPlainVersion = 1;
    static constexpr std::uint32_t kProfiledVersion = 2;

    using ShortHash = std::array<std::byte, 8>;
    using Hash = std::array<std::byte, 16>;

    std::uint32_t version = kPlainVersion;
    std::uint32_t anchor = 0;
    std::uint32_t n_tokens = 0;
    std::uint32_t n_layer = 0;
    std::uint32_t k_row_bytes = 0;
    std::uint32_t v_row_bytes = 0;
    std::uint16_t k_type = 1;  // ggml's number; only f16 is known
    std::uint16_t v_type = 1;
    std::uint8_t v_trans = 0;  // how the cache it was compiled in lays V out
    RopePairing pairing = RopePairing::kNorm;
    std::uint16_t n_rot = 0;
    std::uint32_t head_dim = 0;
    std::uint32_t n_ctx_orig = 0;
    float rope_base = 0.0F;
    float rope_scale = 0.0F;
    float ext_factor = 0.0F;
    float attn_factor = 0.0F;
    ShortHash rope_factors_hash{};  // all zero without frequency factors
    Hash fingerprint{};             // of the model and its tokenizer
    Hash context_hash{};            // of the tokens it was compiled behind
    Hash payload_hash{};            // of tokens, sensitivity, K and V

    [[nodiscard]] bool profiled() const noexcept { return version == kProfiledVersion; }
    [[nodiscard]] std::size_t k_offset() const noexcept;
    [[nodiscard]] std::size_t v_offset() const noexcept;
    [[nodiscard]] std::size_t file_bytes() const noexcept;

    bool operator==(const BlockHeader&) const = default;
};

std::array<std::byte, BlockHeader::kBytes> encode(const BlockHeader& header);
// Throws FormatError naming the first field that is not known or contradicts `file_bytes`.
BlockHeader decode_block_header(std::span<const std::byte> file_start, std::size_t file_bytes);
// Throws FormatError naming the first field in which a block does not fit the model that `model` describes:
// everything but anchor, token count, context and payload.
void check_same_model(const BlockHeader& block, const BlockHeader& model);
BlockHeader::ShortHash hash_rope_factors(std::span<const float> factors);

// Writes a block atomically; fills in the token count and the payload hash, and returns the header written.
// keys[l] is [n_tokens, k_row_bytes / 2], values[l] likewise. With a sensitivity, which has one finite number
// of at least 0 per token, the file is of version 2; without one it is of version 1.
BlockHeader write_block(const std::string& path, BlockHeader header, std::span<const std::int32_t> tokens,
                        std::span<const Half* const> keys, std::span<const Half* const> values,
                        std::span<const float> sensitivity = {});

// A block in memory that the caller keeps alive, aligned as a token is. The constructor checks the header and
// the size; `verify` reads the payload.
class BlockView {
  public:
    // Throws FormatError naming the field that is wrong.
    explicit BlockView(std::span<const std::byte> file);

    [[nodiscard]] const BlockHeader& header() const noexcept { return header_; }
    [[nodiscard]] std::span<const std::int32_t> tokens() const noexcept;
    // Empty in version 1.
    [[nodiscard]] std::span<const float> sensitivity() const noexcept;
    // Rows of a layer, row-major; throws std::out_of_range.
    [[nodiscard]] const Half* key(std::size_t layer) const;
    [[nodiscard]] const Half* value(std::size_t layer) const;
    // Throws FormatError when the payload is not what was written.
    void verify() const;

  private:
    [[nodiscard]] const Half* rows(std::size_t offset, std::size_t row_bytes, std::size_t layer) const;

    std::span<const std::byte> file_;
    BlockHeader header_;
};

// A block mapped for reading.
class BlockFile : private MappedFile, public BlockView {
  public:
    explicit BlockFile(const std::string& path);
};

}  // namespace nexus

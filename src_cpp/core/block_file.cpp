#include "core/block_file.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "core/byte_io.hpp"
#include "core/sha256.hpp"
#include "core/state_codec.hpp"

namespace nexus {
namespace {

constexpr std::size_t kHashedHeaderBytes = BlockHeader::kBytes - sizeof(BlockHeader::ShortHash);
constexpr std::uint32_t kMaxLayers = 4096;
constexpr std::uint32_t kMaxTokens = 1U << 24U;
constexpr std::uint32_t kMaxRowBytes = 1U << 22U;

std::size_t round_up(std::size_t n_bytes) noexcept {
    return (n_bytes + BlockHeader::kAlignment - 1) / BlockHeader::kAlignment * BlockHeader::kAlignment;
}

template <std::size_t N>
std::string hex(const std::array<std::byte, N>& bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string text;
    for (const std::byte byte : bytes) {
        text += kDigits[std::to_integer<std::size_t>(byte >> 4U)];
        text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
    }
    return text;
}

std::string text_of(std::string_view value) { return std::string(value); }
std::string text_of(RopePairing value) { return std::string(name_of(value)); }
std::string text_of(float value) { return std::to_string(value); }
std::string text_of(std::integral auto value) { return std::to_string(value); }
template <std::size_t N>
std::string text_of(const std::array<std::byte, N>& value) {
    return hex(value);
}

template <typename T>
void expect(const char* field, const T& found, const T& wanted) {
    if (found != wanted) {
        throw FormatError(field, text_of(wanted), text_of(found));
    }
}

void expect_range(const char* field, std::uint64_t found, std::uint64_t low, std::uint64_t high) {
    if (found < low || found > high) {
        throw FormatError(field, std::to_string(low) + " to " + std::to_string(high), std::to_string(found));
    }
}

void expect_row(const char* field, std::uint32_t n_bytes) {
    expect_range(field, n_bytes, sizeof(Half), kMaxRowBytes);
    if (n_bytes % sizeof(Half) != 0) {
        throw FormatError(field, "a multiple of 2", std::to_string(n_bytes));
    }
}

void expect_finite(const char* field, float value) {
    if (!std::isfinite(value)) {
        throw FormatError(field, "a finite number", text_of(value));
    }
}

void expect_positive(const char* field, float value) {
    if (!std::isfinite(value) || value <= 0.0F) {
        throw FormatError(field, "a number above 0", text_of(value));
    }
}

// What makes a header usable at all, whether it was just read or is about to be written.
void check_fields(const BlockHeader& header) {
    expect_range("n_tokens", header.n_tokens, 1, kMaxTokens);
    // The last token's position has to be a position, too.
    expect_range("anchor", header.anchor, 0,
                 std::numeric_limits<std::int32_t>::max() - (header.n_tokens - 1));
    expect_range("n_layer", header.n_layer, 1, kMaxLayers);
    expect_row("k_row_bytes", header.k_row_bytes);
    expect_row("v_row_bytes", header.v_row_bytes);
    expect("k_type", ggml_type_name(header.k_type), ggml_type_name(kGgmlF16));
    expect("v_type", ggml_type_name(header.v_type), ggml_type_name(kGgmlF16));
    expect_range("v_trans", header.v_trans, 0, 1);
    expect_range("pairing", static_cast<std::uint8_t>(header.pairing), 0, 1);
    expect_range("head_dim", header.head_dim, 1, header.k_row_bytes / sizeof(Half));
    if (header.k_row_bytes / sizeof(Half) % header.head_dim != 0) {
        throw FormatError("head_dim", "a divisor of the K row", std::to_string(header.head_dim));
    }
    expect_range("n_rot", header.n_rot, 2, header.head_dim);
    if (header.n_rot % 2 != 0) {
        throw FormatError("n_rot", "an even number", std::to_string(header.n_rot));
    }
    expect_positive("rope_base", header.rope_base);
    expect_positive("rope_scale", header.rope_scale);
    expect_finite("ext_factor", header.ext_factor);
    expect_finite("attn_factor", header.attn_factor);
}

Sha256::Digest digest_of(std::span<const std::byte> bytes) {
    Sha256 hash;
    hash.update(bytes);
    return hash.finish();
}

void check_sensitivity(std::span<const float> sensitivity) {
    for (const float value : sensitivity) {
        if (!std::isfinite(value) || value < 0.0F) {
            throw FormatError("sensitivity", "finite numbers of at least 0", text_of(value));
        }
    }
}

BlockHeader::Hash payload_hash(std::span<const std::int32_t> tokens, std::span<const float> sensitivity,
                               std::span<const std::span<const Half>> layers) {
    Sha256 hash;
    hash.update(std::as_bytes(tokens));
    hash.update(std::as_bytes(sensitivity));
    for (const auto layer : layers) {
        hash.update(std::as_bytes(layer));
    }
    return shortened<16>(hash.finish());
}

std::vector<std::span<const Half>> layer_spans(const BlockHeader& header, std::span<const Half* const> keys,
                                               std::span<const Half* const> values) {
    std::vector<std::span<const Half>> layers;
    layers.reserve(keys.size() + values.size());
    for (const Half* rows : keys) {
        layers.emplace_back(rows, std::size_t{header.n_tokens} * header.k_row_bytes / sizeof(Half));
    }
    for (const Half* rows : values) {
        layers.emplace_back(rows, std::size_t{header.n_tokens} * header.v_row_bytes / sizeof(Half));
    }
    return layers;
}

}  // namespace

std::size_t BlockHeader::k_offset() const noexcept {
    const std::size_t per_token = sizeof(std::int32_t) + (profiled() ? sizeof(float) : 0);
    return round_up(kBytes + n_tokens * per_token);
}

std::size_t BlockHeader::v_offset() const noexcept {
    return round_up(k_offset() + std::size_t{n_layer} * n_tokens * k_row_bytes);
}

std::size_t BlockHeader::file_bytes() const noexcept {
    return v_offset() + std::size_t{n_layer} * n_tokens * v_row_bytes;
}

std::array<std::byte, BlockHeader::kBytes> encode(const BlockHeader& header) {
    std::array<std::byte, BlockHeader::kBytes> bytes{};
    ByteWriter writer(bytes);
    writer.write(BlockHeader::kMagic);
    writer.write(header.version);
    writer.write(header.anchor);
    writer.write(header.n_tokens);
    writer.write(header.n_layer);
    writer.write(header.k_row_bytes);
    writer.write(header.v_row_bytes);
    writer.write(header.k_type);
    writer.write(header.v_type);
    writer.write(header.v_trans);
    writer.write(header.pairing);
    writer.write(header.n_rot);
    writer.write(header.head_dim);
    writer.write(header.n_ctx_orig);
    writer.write(header.rope_base);
    writer.write(header.rope_scale);
    writer.write(header.ext_factor);
    writer.write(header.attn_factor);
    writer.write(header.rope_factors_hash);
    writer.write(header.fingerprint);
    writer.write(header.context_hash);
    writer.write(header.payload_hash);
    const auto digest = digest_of(std::span(bytes).first(kHashedHeaderBytes));
    writer.write(shortened<sizeof(BlockHeader::ShortHash)>(digest));
    return bytes;
}

BlockHeader decode_block_header(std::span<const std::byte> file_start, std::size_t file_bytes) {
    ByteReader reader(file_start);
    const auto magic = reader.read<std::array<char, 8>>("magic");
    if (magic != BlockHeader::kMagic) {
        std::array<std::byte, 8> raw;
        std::memcpy(raw.data(), magic.data(), raw.size());
        throw FormatError("magic", "NEXUSATB", hex(raw) + " (hex)");
    }
    if (file_start.size() < BlockHeader::kBytes) {
        throw FormatError("file_bytes", "at least 128", std::to_string(file_bytes) + " (truncated)");
    }
    BlockHeader header;
    header.version = reader.read<std::uint32_t>("version");
    expect_range("version", header.version, BlockHeader::kPlainVersion, BlockHeader::kProfiledVersion);
    header.anchor = reader.read<std::uint32_t>("anchor");
    header.n_tokens = reader.read<std::uint32_t>("n_tokens");
    header.n_layer = reader.read<std::uint32_t>("n_layer");
    header.k_row_bytes = reader.read<std::uint32_t>("k_row_bytes");
    header.v_row_bytes = reader.read<std::uint32_t>("v_row_bytes");
    header.k_type = reader.read<std::uint16_t>("k_type");
    header.v_type = reader.read<std::uint16_t>("v_type");
    header.v_trans = reader.read<std::uint8_t>("v_trans");
    header.pairing = static_cast<RopePairing>(reader.read<std::uint8_t>("pairing"));
    header.n_rot = reader.read<std::uint16_t>("n_rot");
    header.head_dim = reader.read<std::uint32_t>("head_dim");
    header.n_ctx_orig = reader.read<std::uint32_t>("n_ctx_orig");
    header.rope_base = reader.read<float>("rope_base");
    header.rope_scale = reader.read<float>("rope_scale");
    header.ext_factor = reader.read<float>("ext_factor");
    header.attn_factor = reader.read<float>("attn_factor");
    header.rope_factors_hash = reader.read<BlockHeader::ShortHash>("rope_factors_hash");
    header.fingerprint = reader.read<BlockHeader::Hash>("fingerprint");
    header.context_hash = reader.read<BlockHeader::Hash>("context_hash");
    header.payload_hash = reader.read<BlockHeader::Hash>("payload_hash");
    const auto stored = reader.read<BlockHeader::ShortHash>("header_hash");
    const auto digest = digest_of(file_start.first(kHashedHeaderBytes));
    check_fields(header);  // first, for it names the field where the hash cannot
    expect("header_hash", stored, shortened<sizeof(BlockHeader::ShortHash)>(digest));
    expect("file_bytes", file_bytes, header.file_bytes());
    return header;
}

void check_same_model(const BlockHeader& block, const BlockHeader& model) {
    expect("fingerprint", block.fingerprint, model.fingerprint);
    expect("n_layer", block.n_layer, model.n_layer);
    expect("k_row_bytes", block.k_row_bytes, model.k_row_bytes);
    expect("v_row_bytes", block.v_row_bytes, model.v_row_bytes);
    expect("k_type", block.k_type, model.k_type);
    expect("v_type", block.v_type, model.v_type);
    expect("v_trans", block.v_trans, model.v_trans);
    expect("pairing", block.pairing, model.pairing);
    expect("n_rot", block.n_rot, model.n_rot);
    expect("head_dim", block.head_dim, model.head_dim);
    expect("n_ctx_orig", block.n_ctx_orig, model.n_ctx_orig);
    expect("rope_base", block.rope_base, model.rope_base);
    expect("rope_scale", block.rope_scale, model.rope_scale);
    expect("ext_factor", block.ext_factor, model.ext_factor);
    expect("attn_factor", block.attn_factor, model.attn_factor);
    expect("rope_factors_hash", block.rope_factors_hash, model.rope_factors_hash);
}

BlockHeader::ShortHash hash_rope_factors(std::span<const float> factors) {
    if (factors.empty()) {
        return {};
    }
    return shortened<sizeof(BlockHeader::ShortHash)>(digest_of(std::as_bytes(factors)));
}

BlockHeader write_block(const std::string& path, BlockHeader header, std::span<const std::int32_t> tokens,
                        std::span<const Half* const> keys, std::span<const Half* const> values,
                        std::span<const float> sensitivity) {
    if (keys.size() != header.n_layer || values.size() != header.n_layer) {
        throw std::invalid_argument("keys and values must hold one array per layer of the header");
    }
    if (tokens.empty() || tokens.size() > kMaxTokens) {
        throw std::invalid_argument("a block holds between 1 and 2^24 tokens");
    }
    if (!sensitivity.empty() && sensitivity.size() != tokens.size()) {
        throw std::invalid_argument("sensitivity must hold one number per token");
    }
    check_sensitivity(sensitivity);
    header.version = sensitivity.empty() ? BlockHeader::kPlainVersion : BlockHeader::kProfiledVersion;
    header.n_tokens = static_cast<std::uint32_t>(tokens.size());
    check_fields(header);
    const auto layers = layer_spans(header, keys, values);
    header.payload_hash = payload_hash(tokens, sensitivity, layers);
    AtomicFile file(path, header.file_bytes());
    file.write_at(0, encode(header));
    file.write_at(BlockHeader::kBytes, std::as_bytes(tokens));
    file.write_at(BlockHeader::kBytes + tokens.size_bytes(), std::as_bytes(sensitivity));
    std::size_t offset = header.k_offset();
    for (std::size_t i = 0; i < layers.size(); ++i) {
        if (i == keys.size()) {
            offset = header.v_offset();
        }
        file.write_at(offset, std::as_bytes(layers[i]));
        offset += layers[i].size_bytes();
    }
    file.commit();
    return header;
}

BlockView::BlockView(std::span<const std::byte> file)
    : file_(file), header_(decode_block_header(file, file.size())) {}

std::span<const std::int32_t> BlockView::tokens() const noexcept {
    const std::byte* start = file_.data() + BlockHeader::kBytes;
    return {reinterpret_cast<const std::int32_t*>(start), header_.n_tokens};
}

std::span<const float> BlockView::sensitivity() const noexcept {
    if (!header_.profiled()) {
        return {};
    }
    const std::byte* start = file_.data() + BlockHeader::kBytes + tokens().size_bytes();
    return {reinterpret_cast<const float*>(start), header_.n_tokens};
}

const Half* BlockView::rows(std::size_t offset, std::size_t row_bytes, std::size_t layer) const {
    if (layer >= header_.n_layer) {
        throw std::out_of_range("layer " + std::to_string(layer) + " of a block with " +
                                std::to_string(header_.n_layer));
    }
    return reinterpret_cast<const Half*>(file_.data() + offset + layer * header_.n_tokens * row_bytes);
}

const Half* BlockView::key(std::size_t layer) const {
    return rows(header_.k_offset(), header_.k_row_bytes, layer);
}

const Half* BlockView::value(std::size_t layer) const {
    return rows(header_.v_offset(), header_.v_row_bytes, layer);
}

void BlockView::verify() const {
    std::vector<const Half*> keys;
    std::vector<const Half*> values;
    for (std::size_t l = 0; l < header_.n_layer; ++l) {
        keys.push_back(key(l));
        values.push_back(value(l));
    }
    expect("payload_hash", payload_hash(tokens(), sensitivity(), layer_spans(header_, keys, values)),
           header_.payload_hash);
    check_sensitivity(sensitivity());
}

BlockFile::BlockFile(const std::string& path) : MappedFile(path), BlockView(bytes()) {}

}  // namespace nexus

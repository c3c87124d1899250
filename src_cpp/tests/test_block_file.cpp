// Block files: what is written is read back, and a damaged or foreign file is refused by the field that
// differs.

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/block_file.hpp"
#include "core/errors.hpp"
#include "core/sha256.hpp"
#include "tests/check.hpp"

namespace fs = std::filesystem;
using nexus::BlockFile;
using nexus::BlockHeader;
using nexus::FormatError;
using nexus::Half;
using nexus::testing::throws;

namespace {

class Folder {
  public:
    Folder() : path_(fs::temp_directory_path() / ("nexus_block_test_" + std::to_string(getpid()))) {
        fs::create_directories(path_);
    }
    ~Folder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    Folder(Folder&&) = delete;
    Folder& operator=(Folder&&) = delete;

    [[nodiscard]] std::string file(const char* name) const { return (path_ / name).string(); }
    [[nodiscard]] std::size_t n_files() const {
        return static_cast<std::size_t>(
            std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
    }

  private:
    fs::path path_;
};

BlockHeader model() {
    BlockHeader header;
    header.anchor = 64;
    header.n_layer = 3;
    header.k_row_bytes = 32;
    header.v_row_bytes = 48;
    header.v_trans = 1;
    header.pairing = nexus::RopePairing::kNeox;
    header.n_rot = 8;
    header.head_dim = 8;
    header.n_ctx_orig = 2048;
    header.rope_base = 10000.0F;
    header.rope_scale = 1.0F;
    header.attn_factor = 1.0F;
    header.fingerprint.fill(std::byte{0xAB});
    header.context_hash.fill(std::byte{0xCD});
    return header;
}

struct Written {
    std::vector<std::int32_t> tokens = {5, 6, 7, 8, 9};
    std::vector<std::vector<Half>> layers;
    BlockHeader header;
};

Written write(const std::string& path, const BlockHeader& header = model()) {
    Written written;
    std::vector<const Half*> keys;
    std::vector<const Half*> values;
    std::uint16_t next = 1;
    written.layers.reserve(2 * std::size_t{header.n_layer});
    for (const std::uint32_t row_bytes : {header.k_row_bytes, header.v_row_bytes}) {
        for (std::uint32_t l = 0; l < header.n_layer; ++l) {
            std::vector<Half> rows(written.tokens.size() * row_bytes / sizeof(Half));
            for (Half& number : rows) {
                number.bits = next++;
            }
            written.layers.push_back(std::move(rows));
            (row_bytes == header.k_row_bytes ? keys : values).push_back(written.layers.back().data());
        }
    }
    written.header = nexus::write_block(path, header, written.tokens, keys, values);
    return written;
}

std::vector<char> slurp(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> bytes(fs::file_size(path));
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return bytes;
}

void spill(const std::string& path, const std::vector<char>& bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// Puts the right hash on a header that was tampered with, so that the checks behind it are reached.
void rehash(std::vector<char>& bytes) {
    nexus::Sha256 hash;
    hash.update(std::as_bytes(std::span(bytes).first(120)));
    const auto digest = hash.finish();
    std::memcpy(bytes.data() + 120, digest.data(), 8);
}

bool refused_as(const std::string& path, const char* field) {
    return throws<FormatError>([&] { BlockFile{path}; },
                               [field](const FormatError& error) { return error.field() == field; });
}

void test_round_trip() {
    const Folder folder;
    const auto path = folder.file("a.atb");
    const Written written = write(path);
    CHECK(folder.n_files() == 1);  // no temporary is left
    const BlockFile block(path);
    CHECK(block.header() == written.header && block.header().n_tokens == 5);
    CHECK(std::equal(written.tokens.begin(), written.tokens.end(), block.tokens().begin(),
                     block.tokens().end()));
    for (std::size_t l = 0; l < 3; ++l) {
        CHECK(std::memcmp(block.key(l), written.layers[l].data(), 5 * 32) == 0);
        CHECK(std::memcmp(block.value(l), written.layers[3 + l].data(), 5 * 48) == 0);
    }
    block.verify();
    CHECK(block.header().k_offset() % BlockHeader::kAlignment == 0);
    CHECK(block.header().v_offset() % BlockHeader::kAlignment == 0);
    CHECK(block.header().v_offset() >= block.header().k_offset() + 3 * 5 * 32);
    CHECK(throws<std::out_of_range>([&] { static_cast<void>(block.key(3)); }));
}

void test_the_header_is_128_bytes_in_the_documented_order() {
    const Folder folder;
    write(folder.file("a.atb"));
    const auto bytes = slurp(folder.file("a.atb"));
    const auto u32 = [&bytes](std::size_t offset) {
        std::uint32_t value = 0;
        std::memcpy(&value, bytes.data() + offset, sizeof value);
        return value;
    };
    CHECK(std::string(bytes.data(), 8) == "NEXUSATB");
    CHECK(u32(8) == 1 && u32(12) == 64 && u32(16) == 5 && u32(20) == 3 && u32(24) == 32 && u32(28) == 48);
    CHECK(u32(32) == 0x00010001 && u32(36) == 0x00080101 && u32(40) == 8 && u32(44) == 2048);
    CHECK(static_cast<unsigned char>(bytes[72]) == 0xAB && static_cast<unsigned char>(bytes[88]) == 0xCD);
    CHECK(u32(128) == 5 && u32(144) == 9);
}

void test_a_profile_makes_it_version_2() {
    const Folder folder;
    const auto path = folder.file("a.atb");
    const Written plain = write(path);
    CHECK(BlockFile(path).sensitivity().empty() && !plain.header.profiled());
    std::vector<const Half*> keys;
    std::vector<const Half*> values;
    for (std::size_t l = 0; l < 3; ++l) {
        keys.push_back(plain.layers[l].data());
        values.push_back(plain.layers[3 + l].data());
    }
    const std::vector<float> sensitivity = {0.5F, 0.0F, 0.25F, 1.5F, 2.0F};
    const BlockHeader header = nexus::write_block(path, model(), plain.tokens, keys, values, sensitivity);
    CHECK(header.profiled() && header.version == 2 && header.payload_hash != plain.header.payload_hash);
    const BlockFile block(path);
    block.verify();
    CHECK(std::ranges::equal(block.sensitivity(), sensitivity));
    CHECK(std::ranges::equal(block.tokens(), plain.tokens));
    CHECK(std::memcmp(block.value(2), values[2], 5 * 48) == 0);
    auto bytes = slurp(path);
    bytes[128 + 20] ^= 1;  // of the first token's sensitivity
    spill(path, bytes);
    CHECK(throws<FormatError>([&] { BlockFile(path).verify(); },
                              [](const FormatError& error) { return error.field() == "payload_hash"; }));
    for (const float wrong : {-1.0F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
        const std::vector<float> bad = {0.5F, 0.0F, wrong, 1.5F, 2.0F};
        CHECK(throws<FormatError>([&] { nexus::write_block(path, model(), plain.tokens, keys, values, bad); },
                                  [](const FormatError& error) { return error.field() == "sensitivity"; }));
    }
    CHECK(throws<std::invalid_argument>([&] {
        nexus::write_block(path, model(), plain.tokens, keys, values, std::span(sensitivity).first(4));
    }));
}

void test_an_old_file_survives_a_failed_write() {
    const Folder folder;
    const auto path = folder.file("a.atb");
    write(path);
    const auto before = slurp(path);
    BlockHeader wrong = model();
    wrong.rope_base = 0.0F;
    CHECK(throws<FormatError>([&] { write(path, wrong); }));
    CHECK(slurp(path) == before && folder.n_files() == 1);
    CHECK(throws<nexus::FileError>([&] { write(folder.file("no/such/folder.atb")); }));
    CHECK(throws<nexus::FileError>([&] { BlockFile{folder.file("absent.atb")}; }));
    CHECK(throws<nexus::FileError>([&] { BlockFile{folder.file(".")}; }));
}

void test_truncated_and_foreign_files() {
    const Folder folder;
    const auto path = folder.file("a.atb");
    write(path);
    const auto bytes = slurp(path);
    const auto other = folder.file("b.atb");
    for (std::size_t n = 0; n < 300; ++n) {
        spill(other, {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n)});
        CHECK(refused_as(other, n < 8 ? "magic" : "file_bytes"));
    }
    spill(other, {bytes.begin(), bytes.end() - 1});
    CHECK(refused_as(other, "file_bytes"));
    auto longer = bytes;
    longer.push_back(0);
    spill(other, longer);
    CHECK(refused_as(other, "file_bytes"));
    auto foreign = bytes;
    std::memcpy(foreign.data(), "GGUF", 4);
    spill(other, foreign);
    CHECK(refused_as(other, "magic"));
}

void test_each_field_is_named() {
    struct Case {
        std::size_t offset;
        std::uint32_t value;
        const char* field;
    };
    const Folder folder;
    write(folder.file("a.atb"));
    const auto bytes = slurp(folder.file("a.atb"));
    const auto other = folder.file("b.atb");
    for (const Case& wrong : {Case{8, 0, "version"},
                              Case{8, 3, "version"},
                              Case{12, 0x80000000U, "anchor"},
                              Case{12, 0x7FFFFFFCU, "anchor"},  // the fifth token would have no position
                              Case{16, 0, "n_tokens"},
                              Case{16, 0xFFFFFFFFU, "n_tokens"},
                              Case{16, 6, "file_bytes"},
                              Case{20, 0, "n_layer"},
                              Case{20, 4097, "n_layer"},
                              Case{24, 33, "k_row_bytes"},
                              Case{28, 0, "v_row_bytes"},
                              Case{32, 0x00010008U, "k_type"},
                              Case{32, 0x00080001U, "v_type"},
                              Case{36, 0x00080102U, "v_trans"},
                              Case{36, 0x00080501U, "pairing"},
                              Case{36, 0x000A0101U, "n_rot"},
                              Case{36, 0x00030101U, "n_rot"},
                              Case{40, 7, "head_dim"},
                              Case{40, 0, "head_dim"},
                              Case{48, 0x7FC00000U, "rope_base"},
                              Case{52, 0, "rope_scale"},
                              Case{56, 0x7F800000U, "ext_factor"},
                              Case{60, 0x7FC00000U, "attn_factor"}}) {
        auto damaged = bytes;
        std::memcpy(damaged.data() + wrong.offset, &wrong.value, sizeof wrong.value);
        rehash(damaged);
        spill(other, damaged);
        CHECK(refused_as(other, wrong.field));
    }
    auto damaged = bytes;
    damaged[12] ^= 1;  // another anchor is a possible one: only the header's own hash can tell
    spill(other, damaged);
    CHECK(refused_as(other, "header_hash"));
}

void test_random_damage_to_the_header_never_escapes_the_file() {
    const Folder folder;
    write(folder.file("a.atb"));
    const auto bytes = slurp(folder.file("a.atb"));
    std::mt19937 random(3);
    for (int round = 0; round < 20000; ++round) {
        auto header = std::vector<std::byte>(BlockHeader::kBytes);
        std::vector<char> damaged(bytes.begin(), bytes.begin() + BlockHeader::kBytes);
        for (std::size_t n = 1 + random() % 3; n > 0; --n) {
            damaged[8 + random() % 112] = static_cast<char>(random());
        }
        rehash(damaged);
        std::memcpy(header.data(), damaged.data(), header.size());
        try {
            const BlockHeader decoded = nexus::decode_block_header(header, bytes.size());
            CHECK(decoded.file_bytes() == bytes.size());
        } catch (const FormatError& error) {
            CHECK(!error.field().empty());
        }
    }
}

void test_a_changed_payload_is_found() {
    const Folder folder;
    const Written written = write(folder.file("a.atb"));
    const auto bytes = slurp(folder.file("a.atb"));
    const auto other = folder.file("b.atb");
    for (const std::size_t offset :
         {std::size_t{128}, written.header.k_offset(), written.header.v_offset(), bytes.size() - 1}) {
        auto damaged = bytes;
        damaged[offset] ^= 0x10;
        spill(other, damaged);
        const BlockFile block(other);
        CHECK(throws<FormatError>([&] { block.verify(); },
                                  [](const FormatError& error) { return error.field() == "payload_hash"; }));
    }
}

void test_another_model_is_named_by_its_first_difference() {
    const BlockHeader block = model();
    const auto differs = [&block](auto change, const char* field) {
        BlockHeader other = model();
        change(other);
        return throws<FormatError>([&] { nexus::check_same_model(block, other); },
                                   [field](const FormatError& error) { return error.field() == field; });
    };
    nexus::check_same_model(block, model());
    CHECK(differs([](BlockHeader& h) { h.fingerprint[3] = std::byte{1}; }, "fingerprint"));
    CHECK(differs([](BlockHeader& h) { h.n_layer = 4; }, "n_layer"));
    CHECK(differs([](BlockHeader& h) { h.v_trans = 0; }, "v_trans"));
    CHECK(differs([](BlockHeader& h) { h.pairing = nexus::RopePairing::kNorm; }, "pairing"));
    CHECK(differs([](BlockHeader& h) { h.rope_base = 10001.0F; }, "rope_base"));
    CHECK(differs([](BlockHeader& h) { h.rope_scale = 0.5F; }, "rope_scale"));
    CHECK(differs([](BlockHeader& h) { h.rope_factors_hash[0] = std::byte{1}; }, "rope_factors_hash"));
    BlockHeader elsewhere = model();
    elsewhere.anchor = 0;
    elsewhere.context_hash.fill(std::byte{0});
    nexus::check_same_model(block, elsewhere);  // where it was compiled is no matter of the model
}

}  // namespace

int main() {
    test_round_trip();
    test_the_header_is_128_bytes_in_the_documented_order();
    test_a_profile_makes_it_version_2();
    test_an_old_file_survives_a_failed_write();
    test_truncated_and_foreign_files();
    test_each_field_is_named();
    test_random_damage_to_the_header_never_escapes_the_file();
    test_a_changed_payload_is_found();
    test_another_model_is_named_by_its_first_difference();
    return nexus::testing::finish();
}

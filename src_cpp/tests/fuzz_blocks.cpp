// Block files for the fuzzer: valid ones of every layout, their hashes put right after a mutation, and the
// judge that holds the reader to its word.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>

#include "core/block_file.hpp"
#include "core/errors.hpp"
#include "core/sha256.hpp"
#include "tests/count_allocations.hpp"
#include "tests/fuzz_readers.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) (static_cast<void>(address), static_cast<void>(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) (static_cast<void>(address), static_cast<void>(size))
#endif

namespace fs = std::filesystem;

namespace nexus::fuzz {
namespace {

constexpr std::size_t kSamples = 96;
constexpr std::size_t kMemory = std::size_t{32} << 20U;
constexpr std::size_t kAlignment = std::size_t{2} << 20U;
constexpr std::size_t kHashed = 120;
constexpr std::size_t kPayloadHash = 104;
constexpr std::size_t kUsualContent = std::size_t{32} << 10U;
constexpr std::size_t kMostContent = std::size_t{4} << 20U;

// The format once more, from its description: what a header claims, whoever wrote it.
struct Claim {
    std::size_t version;
    std::size_t n_tokens;
    std::size_t n_layer;
    std::size_t k_row;
    std::size_t v_row;

    explicit Claim(const Sample& sample)
        : version(sample.read_number({8, 4})),
          n_tokens(sample.read_number({16, 4})),
          n_layer(sample.read_number({20, 4})),
          k_row(sample.read_number({24, 4})),
          v_row(sample.read_number({28, 4})) {}

    static std::size_t aligned(std::size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }
    [[nodiscard]] bool moderate() const {
        return n_tokens <= kMostContent && n_layer <= kMostContent && k_row <= kMostContent &&
               v_row <= kMostContent && n_tokens * n_layer <= kMostContent && content() <= kMostContent;
    }
    [[nodiscard]] std::size_t per_token() const { return version == 2 ? 8 : 4; }
    [[nodiscard]] std::size_t content() const { return n_tokens * (per_token() + n_layer * (k_row + v_row)); }
    [[nodiscard]] std::size_t k_offset() const { return aligned(128 + per_token() * n_tokens); }
    [[nodiscard]] std::size_t v_offset() const { return aligned(k_offset() + n_tokens * n_layer * k_row); }
    [[nodiscard]] std::size_t size() const { return v_offset() + n_tokens * n_layer * v_row; }
};

Sha256::Digest payload_digest(const Sample& sample, const Claim& claim) {
    Sha256 hash;
    hash.update(sample.read(128, claim.per_token() * claim.n_tokens));
    hash.update(sample.read(claim.k_offset(), claim.n_tokens * claim.n_layer * claim.k_row));
    hash.update(sample.read(claim.v_offset(), claim.n_tokens * claim.n_layer * claim.v_row));
    return hash.finish();
}

fs::path scratch_folder() {
    return fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
}

std::string scratch_file(const char* name) {
    return (scratch_folder() / ("nexus_fuzz_" + std::to_string(getpid()) + name)).string();
}

template <std::size_t N>
void fill(std::array<std::byte, N>& hash, Random& random) {
    for (std::byte& byte : hash) {
        byte = static_cast<std::byte>(random.next());
    }
}

BlockHeader random_header(Random& random) {
    static const std::vector<std::uint32_t> kLayers = {1, 1, 2, 3, 4, 33};
    static const std::vector<std::uint32_t> kHeadDims = {2, 4, 8, 16, 64};
    static const std::vector<std::uint32_t> kHeads = {1, 1, 2, 3};
    static const std::vector<float> kFactors = {0.0F, 0.25F, 1.0F, -1.0F, 1.5F};
    BlockHeader header;
    header.anchor = static_cast<std::uint32_t>(random.percent(30) ? 0 : random.below(5000));
    header.n_layer = random.of(kLayers);
    header.head_dim = random.of(kHeadDims);
    header.k_row_bytes = header.head_dim * random.of(kHeads) * 2;
    header.v_row_bytes = 2 * static_cast<std::uint32_t>(1 + random.below(24));
    header.v_trans = random.percent(50) ? 1 : 0;
    header.pairing = random.percent(50) ? RopePairing::kNorm : RopePairing::kNeox;
    header.n_rot = static_cast<std::uint16_t>(2 + 2 * random.below(header.head_dim / 2));
    header.n_ctx_orig = random.percent(50) ? 0 : 8192;
    header.rope_base = random.percent(50) ? 10000.0F : 1.0e6F;
    header.rope_scale = random.percent(50) ? 1.0F : 0.25F;
    header.ext_factor = random.of(kFactors);
    header.attn_factor = random.of(kFactors);
    fill(header.fingerprint, random);
    if (random.percent(50)) {
        fill(header.rope_factors_hash, random);
    }
    if (random.percent(50)) {
        fill(header.context_hash, random);
    }
    return header;
}

std::vector<Field> header_fields(const BlockHeader& header) {
    std::vector<Field> fields = {{0, 8},  {8, 4},  {12, 4}, {16, 4},  {20, 4},  {24, 4},   {28, 4}, {32, 2},
                                 {34, 2}, {36, 1}, {37, 1}, {38, 2},  {40, 4},  {44, 4},   {48, 4}, {52, 4},
                                 {56, 4}, {60, 4}, {64, 8}, {72, 16}, {88, 16}, {104, 16}, {120, 8}};
    for (std::size_t i = 0; i < header.n_tokens && i < 3; ++i) {
        fields.push_back({128 + 4 * i, 4});
        if (header.profiled()) {
            fields.push_back({128 + 4 * (header.n_tokens + i), 4});
        }
    }
    return fields;
}

Sample sample_from(const std::string& path, const BlockHeader& header) {
    std::ifstream file(path, std::ios::binary);
    const auto run_at = [&file](std::size_t offset, std::size_t n_bytes) {
        Run run{offset, Bytes(n_bytes)};
        file.seekg(static_cast<std::streamoff>(offset));
        file.read(reinterpret_cast<char*>(run.bytes.data()), static_cast<std::streamsize>(n_bytes));
        return run;
    };
    const std::size_t n_rows = std::size_t{header.n_layer} * header.n_tokens;
    Sample sample;
    sample.size = fs::file_size(path);
    sample.fields = header_fields(header);
    sample.runs = {
        run_at(0, BlockHeader::kBytes + (header.profiled() ? std::size_t{8} : 4) * header.n_tokens),
        run_at(header.k_offset(), n_rows * header.k_row_bytes),
        run_at(header.v_offset(), n_rows * header.v_row_bytes)};
    return sample;
}

Sample random_block(const std::string& path, Random& random) {
    static const std::vector<std::size_t> kTokens = {1, 2, 3, 5, 17, 40};
    const BlockHeader header = random_header(random);
    std::vector<std::int32_t> tokens(random.of(kTokens));
    for (std::int32_t& token : tokens) {
        token = static_cast<std::int32_t>(random.below(50000));
    }
    std::vector<Half> rows(tokens.size() * std::max(header.k_row_bytes, header.v_row_bytes) / 2 +
                           2 * header.n_layer);
    for (Half& number : rows) {
        number.bits = static_cast<std::uint16_t>(random.next());
    }
    std::vector<const Half*> keys;
    std::vector<const Half*> values;
    for (std::size_t l = 0; l < header.n_layer; ++l) {  // layers overlap in memory, and differ in the file
        keys.push_back(rows.data() + 2 * l);
        values.push_back(rows.data() + 2 * l + 1);
    }
    std::vector<float> sensitivity(random.percent(50) ? tokens.size() : 0);
    for (float& number : sensitivity) {
        number = static_cast<float>(random.below(1000)) / 500.0F;
    }
    return sample_from(path, write_block(path, header, tokens, keys, values, sensitivity));
}

// Writes the block that `read` shows, and compares the two files.
std::string fault_in_copy(const BlockView& read, const std::string& path) {
    const BlockHeader& header = read.header();
    std::vector<const Half*> keys;
    std::vector<const Half*> values;
    for (std::size_t l = 0; l < header.n_layer; ++l) {
        keys.push_back(read.key(l));
        values.push_back(read.value(l));
    }
    if (!(write_block(path, header, read.tokens(), keys, values, read.sensitivity()) == header)) {
        return "written again, it has another header";
    }
    const BlockFile copy(path);
    copy.verify();
    for (std::size_t l = 0; l < header.n_layer; ++l) {
        if (std::memcmp(copy.key(l), keys[l], std::size_t{header.n_tokens} * header.k_row_bytes) != 0 ||
            std::memcmp(copy.value(l), values[l], std::size_t{header.n_tokens} * header.v_row_bytes) != 0) {
            return "written again, it has other rows";
        }
    }
    return "";
}

// Holds a header that was accepted to the bytes it came from and to the limits of the format.
std::string fault_in(const BlockView& block, const Sample& sample, const std::byte* memory) {
    const BlockHeader& header = block.header();
    const Claim claim(sample);
    if (std::memcmp(encode(header).data(), memory, BlockHeader::kBytes) != 0) {
        return "encoded again, it is another header";
    }
    if (claim.size() != sample.size || header.file_bytes() != sample.size ||
        header.k_offset() != claim.k_offset() || header.v_offset() != claim.v_offset()) {
        return "it claims another size than the file's";
    }
    if (header.n_tokens == 0 || header.n_layer == 0 || header.n_rot > header.head_dim || header.v_trans > 1 ||
        header.head_dim * 2 > header.k_row_bytes ||
        std::uint64_t{header.anchor} + header.n_tokens > 1ULL << 31U) {
        return "a field passes its limit";
    }
    if (reinterpret_cast<const std::byte*>(block.tokens().data()) != memory + 128 ||
        block.tokens().size() != claim.n_tokens) {
        return "tokens lie elsewhere";
    }
    const auto sensitivity = std::as_bytes(block.sensitivity());
    if (sensitivity.size() != (claim.version == 2 ? 4 * claim.n_tokens : 0) ||
        Bytes(sensitivity.begin(), sensitivity.end()) !=
            sample.read(128 + 4 * claim.n_tokens, sensitivity.size())) {
        return "sensitivity holds something else";
    }
    for (std::size_t l = 0; l < claim.n_layer; ++l) {
        const auto* key = reinterpret_cast<const std::byte*>(block.key(l));
        const auto* value = reinterpret_cast<const std::byte*>(block.value(l));
        if (key != memory + claim.k_offset() + l * claim.n_tokens * claim.k_row ||
            value != memory + claim.v_offset() + l * claim.n_tokens * claim.v_row) {
            return "rows lie elsewhere";
        }
        // Every byte of every row, through a function that the sanitizer watches.
        if (Bytes(key, key + claim.n_tokens * claim.k_row) !=
                sample.read(static_cast<std::size_t>(key - memory), claim.n_tokens * claim.k_row) ||
            Bytes(value, value + claim.n_tokens * claim.v_row) !=
                sample.read(static_cast<std::size_t>(value - memory), claim.n_tokens * claim.v_row)) {
            return "rows hold something else";
        }
    }
    try {
        static_cast<void>(block.key(claim.n_layer));
        return "there is a layer behind the last one";
    } catch (const std::out_of_range&) {
        check_same_model(header, header);
    }
    return "";
}

bool is_measure(float value) { return value >= 0.0F && value <= std::numeric_limits<float>::max(); }

bool payload_holds(const Sample& sample) {
    const auto digest = payload_digest(sample, Claim(sample));
    const Bytes stored = sample.read(kPayloadHash, sizeof(BlockHeader::Hash));
    return std::equal(stored.begin(), stored.end(), digest.begin());
}

}  // namespace

std::vector<Sample> block_samples(Random& random) {
    const std::string path = scratch_file(".sample.atb");
    std::vector<Sample> samples;
    for (std::size_t i = 0; i < kSamples; ++i) {
        samples.push_back(random_block(path, random));
    }
    fs::remove(path);
    return samples;
}

void seal_block(Sample& sample, Random& random) {
    if (sample.size < BlockHeader::kBytes) {
        return;
    }
    const Claim claim(sample);
    const bool usual = claim.moderate() && (claim.content() <= kUsualContent || random.percent(1));
    if (usual && random.percent(60) && claim.size() <= kMemory) {
        sample.size = claim.size();
        sample.clip();
    }
    if (usual && random.percent(70)) {
        const auto digest = payload_digest(sample, claim);
        sample.write(kPayloadHash, std::span(digest).first(sizeof(BlockHeader::Hash)));
    }
    if (random.percent(85)) {
        Sha256 hash;
        hash.update(sample.read(0, kHashed));
        const auto digest = hash.finish();
        sample.write(kHashed, std::span(digest).first(sizeof(BlockHeader::ShortHash)));
    }
}

BlockJudge::BlockJudge() : path_(scratch_file(".atb")) {
    void* memory =
        mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        throw std::bad_alloc();
    }
    memory_ = static_cast<std::byte*>(memory);
    ASAN_POISON_MEMORY_REGION(memory_, kMemory);
}

BlockJudge::~BlockJudge() {
    ASAN_UNPOISON_MEMORY_REGION(memory_, kMemory);
    munmap(memory_, kMemory);
    std::error_code ignored;
    fs::remove(path_, ignored);
}

// What lies behind the end is poisoned, to the byte.
void BlockJudge::resize(std::size_t size) noexcept {
    ASAN_UNPOISON_MEMORY_REGION(memory_ + std::min(size, size_), size - std::min(size, size_));
    ASAN_POISON_MEMORY_REGION(memory_ + size, std::max(size, size_) - size);
    size_ = size;
}

void BlockJudge::pour(const Sample& sample) {
    for (const Field& old : dirty_) {
        ASAN_UNPOISON_MEMORY_REGION(memory_ + old.offset, old.width);
        std::memset(memory_ + old.offset, 0, old.width);
        if (old.offset + old.width > size_) {
            ASAN_POISON_MEMORY_REGION(memory_ + std::max(size_, old.offset),
                                      old.offset + old.width - std::max(size_, old.offset));
        }
    }
    dirty_.clear();
    resize(sample.size);
    for (const Run& run : sample.runs) {
        std::memcpy(memory_ + run.offset, run.bytes.data(), run.bytes.size());
        dirty_.push_back({run.offset, run.bytes.size()});
    }
}

std::string BlockJudge::through_file(const Sample& sample) const {
    const int file = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool written = file >= 0 && ftruncate(file, static_cast<off_t>(sample.size)) == 0;
    for (const Run& run : sample.runs) {
        written = written && pwrite(file, run.bytes.data(), run.bytes.size(),
                                    static_cast<off_t>(run.offset)) == static_cast<ssize_t>(run.bytes.size());
    }
    if (file < 0 || close(file) != 0 || !written) {
        throw std::runtime_error("the scratch file cannot be written");
    }
    try {
        const BlockFile block(path_);
        block.verify();
        return "";
    } catch (const FormatError& error) {
        return error.field();
    }
}

Verdict BlockJudge::judge(const Sample& whole, bool on_disk) {
    Sample sample = whole;
    sample.size = std::min(sample.size, kMemory);
    sample.clip();
    pour(sample);
    Verdict verdict;
    const std::size_t before = testing::n_allocated_bytes();
    try {
        const BlockView block(std::span<const std::byte>(memory_, sample.size));
        verdict.fault = fault_in(block, sample, memory_);
        const std::size_t start = testing::n_allocated_bytes();
        try {
            block.verify();
        } catch (const FormatError& error) {
            verdict.refused = error.field();
        }
        if (testing::n_allocated_bytes() - start > kAllowance + sample.size) {
            verdict.fault = "verifying allots more than the file has";
        }
        if (verdict.fault.empty() && (verdict.refused == "payload_hash") == payload_holds(sample)) {
            verdict.fault = "the payload's hash says something else";
        }
        const bool sensible = std::ranges::all_of(block.sensitivity(), is_measure);
        if (verdict.fault.empty() && verdict.refused != "payload_hash" &&
            verdict.refused.empty() != sensible) {
            verdict.fault = "the sensitivity is judged wrong";
        }
        if (verdict.fault.empty() && verdict.refused.empty() && on_disk) {
            verdict.fault = fault_in_copy(block, path_);
        }
    } catch (const FormatError& error) {
        verdict.refused = error.field();
        if (testing::n_allocated_bytes() - before > kAllowance) {
            verdict.fault =
                "a refusal allots " + std::to_string(testing::n_allocated_bytes() - before) + " bytes";
        }
    } catch (const std::exception& error) {
        verdict.fault = std::string("another error than FormatError: ") + error.what();
    }
    if (verdict.fault.empty() && on_disk) {
        const std::string refused = through_file(sample);
        if (refused != verdict.refused) {
            verdict.fault = "the file is judged as '" + refused + "', memory as '" + verdict.refused + "'";
        }
    }
    return verdict;
}

}  // namespace nexus::fuzz

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/fuzz_mutations.hpp"

namespace nexus::fuzz {

// Bytes that a reader may allot for messages and the like, whatever it reads.
constexpr std::size_t kAllowance = 8192;

// What the reader said: the field that it refused, or nothing.
struct Verdict {
    std::string refused;
    std::string fault;  // what was wrong with the answer itself; empty as it should be
};

std::vector<Sample> block_samples(Random& random);
std::vector<Sample> state_samples(Random& random);

// Puts sizes and hashes in order, of some cases, so that the checks behind them are reached.
void seal_block(Sample& sample, Random& random);

class BlockJudge {
  public:
    BlockJudge();
    ~BlockJudge();
    BlockJudge(const BlockJudge&) = delete;
    BlockJudge& operator=(const BlockJudge&) = delete;
    BlockJudge(BlockJudge&&) = delete;
    BlockJudge& operator=(BlockJudge&&) = delete;

    // Reads the sample from memory that ends where the file ends; through a real file, too, when `on_disk`.
    Verdict judge(const Sample& sample, bool on_disk);

  private:
    void pour(const Sample& sample);
    void resize(std::size_t size) noexcept;
    [[nodiscard]] std::string through_file(const Sample& sample) const;

    std::byte* memory_ = nullptr;
    std::size_t size_ = 0;
    std::vector<Field> dirty_;
    std::string path_;
};

Verdict judge_state(const Sample& sample);

}  // namespace nexus::fuzz

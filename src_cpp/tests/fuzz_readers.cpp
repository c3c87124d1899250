// Mutated block files and sequence states through the readers: each is refused with a FormatError or read
// right, and under the sanitizers nothing is read that is not there.
//
//   fuzz_readers [cases] [seed] [first case]
//
// A case depends on the seed and its number alone: `fuzz_readers 1 SEED NUMBER` runs one again.

#include "tests/fuzz_readers.hpp"

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "tests/check.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

using nexus::fuzz::BlockJudge;
using nexus::fuzz::Random;
using nexus::fuzz::Sample;
using nexus::fuzz::Verdict;

constexpr std::uint64_t kUsualCases = 20000;
constexpr std::size_t kOnDisk = 16;  // one case in so many goes through a real file, too
constexpr int kMostFaults = 10;

std::uint64_t seed = 1;
std::uint64_t current = 0;

void say_case() {
    (void)std::fprintf(stderr, "in case %" PRIu64 ": fuzz_readers 1 %" PRIu64 " %" PRIu64 "\n", current, seed,
                       current);
}

struct Tally {
    std::uint64_t accepted = 0;
    std::map<std::string, std::uint64_t> refused;

    // Counts a verdict; false when it is at fault.
    bool add(const Verdict& verdict) {
        if (!verdict.fault.empty()) {
            (void)std::fprintf(stderr, "%s (refused: '%s')\n", verdict.fault.c_str(),
                               verdict.refused.c_str());
            say_case();
            CHECK(verdict.fault.empty());
            return false;
        }
        if (verdict.refused.empty()) {
            ++accepted;
        } else {
            ++refused[verdict.refused.substr(0, verdict.refused.find(" of layer"))];
        }
        return true;
    }

    void print(const char* what) const {
        std::uint64_t n = accepted;
        for (const auto& [field, count] : refused) {
            n += count;
        }
        std::printf("%s: %" PRIu64 " cases, %" PRIu64 " accepted and read right, %" PRIu64 " refused\n", what,
                    n, accepted, n - accepted);
        for (const auto& [field, count] : refused) {
            std::printf("  %-18s %10" PRIu64 "\n", field.c_str(), count);
        }
    }
};

void test_what_was_not_changed_is_accepted(const std::vector<Sample>& blocks,
                                           const std::vector<Sample>& states, BlockJudge& judge) {
    for (const Sample& block : blocks) {
        const Verdict verdict = judge.judge(block, true);
        CHECK(verdict.refused.empty() && verdict.fault.empty());
    }
    std::size_t accepted = 0;
    for (const Sample& state : states) {
        accepted += nexus::fuzz::judge_state(state).refused.empty() ? 1 : 0;
    }
    CHECK(accepted * 9 >= states.size() * 8 && accepted < states.size());  // some are of a declined kind
}

std::uint64_t argument(int count, char** values, int index, std::uint64_t otherwise) {
    return index < count ? std::strtoull(values[index], nullptr, 10) : otherwise;
}

}  // namespace

int main(int count, char** values) {
    const std::uint64_t n = argument(count, values, 1, kUsualCases);
    seed = argument(count, values, 2, 1);
    const std::uint64_t first = argument(count, values, 3, 0);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_set_death_callback(say_case);
#endif
    const auto start = std::chrono::steady_clock::now();
    Random making(seed, ~std::uint64_t{0} - 1);
    const std::vector<Sample> blocks = nexus::fuzz::block_samples(making);
    const std::vector<Sample> states = nexus::fuzz::state_samples(making);
    BlockJudge judge;
    test_what_was_not_changed_is_accepted(blocks, states, judge);
    Tally of_blocks;
    Tally of_states;
    for (current = first; current < first + n && nexus::testing::failures < kMostFaults; ++current) {
        Random random(seed, current);
        const bool is_block = current % 2 == 0;
        Sample sample = random.of(is_block ? blocks : states);
        nexus::fuzz::mutate(sample, is_block ? blocks : states, random);
        if (is_block) {
            nexus::fuzz::seal_block(sample, random);
            of_blocks.add(judge.judge(sample, random.below(kOnDisk) == 0));
        } else {
            of_states.add(nexus::fuzz::judge_state(sample));
        }
    }
    of_blocks.print("block files");
    of_states.print("sequence states");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%" PRIu64 " cases of seed %" PRIu64 " in %.1f s\n", n, seed, took.count());
    CHECK(n < kUsualCases || (of_blocks.accepted > n / 50 && of_states.accepted > n / 50));
    return nexus::testing::finish();
}

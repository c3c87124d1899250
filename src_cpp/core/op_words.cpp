#include "core/op_words.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace nexus {
namespace {

constexpr std::size_t kHead = 2;        // kind, number of words
constexpr std::size_t kSpliceHead = 2;  // anchor, bytes of the name

void require(bool holds, const char* what) {
    if (!holds) {
        throw std::invalid_argument(std::string("program words: ") + what);
    }
}

std::size_t splice_tokens(std::span<const std::int32_t> payload) {
    require(payload.size() >= kSpliceHead && payload[1] > 0, "a splice names a block");
    const auto name_words =
        (static_cast<std::size_t>(payload[1]) + sizeof(std::int32_t) - 1) / sizeof(std::int32_t);
    require(payload.size() > kSpliceHead + name_words, "a splice has tokens");
    return payload.size() - kSpliceHead - name_words;
}

}  // namespace

OpWords OpReader::next() {
    require(rest_.size() >= kHead, "an operation has a head");
    require(rest_[0] >= 0 && rest_[0] < kOpKinds, "the kind is known");
    require(rest_[1] >= 0 && static_cast<std::size_t>(rest_[1]) <= rest_.size() - kHead,
            "the words are all there");
    OpWords op{static_cast<OpKind>(rest_[0]), rest_.subspan(kHead, static_cast<std::size_t>(rest_[1])), 0};
    check(op);
    if (op.kind == OpKind::kAppend) {
        op.n_tokens = op.payload.size();
    } else if (op.kind == OpKind::kSplice) {
        op.n_tokens = splice_tokens(op.payload);
    }
    rest_ = rest_.subspan(kHead + op.payload.size());
    n_tokens_ += op.n_tokens;
    after_append_ = op.kind == OpKind::kAppend;
    return op;
}

void OpReader::check(const OpWords& op) const {
    switch (op.kind) {
        case OpKind::kAppend:
            require(!op.payload.empty() && !after_append_, "appends have tokens, and adjacent ones are one");
            break;
        case OpKind::kSplice:
            break;  // by the count of its tokens
        case OpKind::kRepair:
            check_indices(op.payload);
            break;
        case OpKind::kDrop:
            check_ranges(op.payload);
            break;
        case OpKind::kRepos:
            require(op.payload.empty(), "a repos has no words");
    }
}

void OpReader::check_indices(std::span<const std::int32_t> indices) const {
    if (!indices.empty() && indices.front() == kCarry) {
        indices = indices.subspan(1);
    }
    require(!indices.empty() && indices.front() >= 0, "a repair names tokens");
    require(std::adjacent_find(indices.begin(), indices.end(), std::greater_equal<>()) == indices.end(),
            "indices of a repair rise");
    require(static_cast<std::size_t>(indices.back()) < n_tokens_, "repaired tokens exist");
}

void OpReader::check_ranges(std::span<const std::int32_t> bounds) const {
    require(!bounds.empty() && bounds.size() % 2 == 0 && bounds.front() >= 0, "a drop names ranges");
    // Adjacent ranges would be one: every bound lies behind the one before.
    require(std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) == bounds.end(),
            "ranges of a drop are sorted and apart");
    require(static_cast<std::size_t>(bounds.back()) <= n_tokens_, "dropped tokens exist");
}

}  // namespace nexus

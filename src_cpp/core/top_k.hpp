#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace nexus::detail {

struct Hit {
    std::int32_t dot;
    std::int64_t id;
};

// Keeps the k best of a stream of ids in rising order; of equal dots the lower id wins. Meant for small k.
class TopK {
  public:
    // `hits` is the caller's memory for k hits, k at least 1.
    explicit TopK(std::span<Hit> hits) noexcept : hits_(hits) {}

    [[nodiscard]] std::size_t size() const noexcept { return size_; }

    void offer(std::span<const std::int32_t> dots, std::int64_t first_id) noexcept {
        std::size_t i = 0;
        for (; i < dots.size() && size_ < hits_.size(); ++i) {
            insert(dots[i], first_id + static_cast<std::int64_t>(i));
        }
        // Most groups hold nothing better than the worst kept: one vector comparison passes them by.
        for (; i + kGroup <= dots.size(); i += kGroup) {
            if (any_above(dots.data() + i, hits_[size_ - 1].dot)) {
                offer_each(dots.subspan(i, kGroup), first_id + static_cast<std::int64_t>(i));
            }
        }
        offer_each(dots.subspan(i), first_id + static_cast<std::int64_t>(i));
    }

  private:
    static constexpr std::size_t kGroup = 16;

    static bool any_above(const std::int32_t* dots, std::int32_t bar) noexcept {
        std::int32_t any = 0;
        for (std::size_t i = 0; i < kGroup; ++i) {
            any |= static_cast<std::int32_t>(dots[i] > bar);
        }
        return any != 0;
    }

    void offer_each(std::span<const std::int32_t> dots, std::int64_t first_id) noexcept {
        for (std::size_t i = 0; i < dots.size(); ++i) {
            if (dots[i] > hits_[size_ - 1].dot) {
                insert(dots[i], first_id + static_cast<std::int64_t>(i));
            }
        }
    }

    void insert(std::int32_t dot, std::int64_t id) noexcept {
        std::size_t place = size_ < hits_.size() ? size_++ : size_ - 1;
        for (; place > 0 && hits_[place - 1].dot < dot; --place) {
            hits_[place] = hits_[place - 1];
        }
        hits_[place] = {dot, id};
    }

    std::span<Hit> hits_;
    std::size_t size_ = 0;
};

}  // namespace nexus::detail

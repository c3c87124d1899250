#include "core/rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

#include "core/cpu.hpp"
#include "core/rope_kernels.hpp"

namespace nexus {
namespace {

// One rotation per distinct delta: for pair i, x' = x cos - y sin and y' = x sin + y cos.
void fill_table(std::int32_t delta, std::span<const double> inv_freq, detail::RotationTable& table) {
    for (std::size_t i = 0; i < inv_freq.size(); ++i) {
        const double angle = static_cast<double>(delta) * inv_freq[i];
        table.cosine[i] = static_cast<float>(std::cos(angle));
        table.sine[i] = static_cast<float>(std::sin(angle));
    }
}

void check(const RopeShape& shape, std::span<const double> inv_freq) {
    if (shape.n_rot == 0 || shape.n_rot % 2 != 0 || shape.n_rot > shape.head_dim) {
        throw std::invalid_argument("n_rot must be even, above 0 and at most head_dim");
    }
    if (inv_freq.size() != shape.n_rot / 2) {
        throw std::invalid_argument("inv_freq must hold n_rot / 2 numbers");
    }
}

// Pair index at which a frequency turns `rotations` times over the original context.
double correction_dim(double rotations, std::size_t n_rot, double base, double n_ctx_orig) {
    return static_cast<double>(n_rot) * std::log(n_ctx_orig / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(base));
}

// Share of the unscaled frequency that pair i keeps under YaRN.
class YarnMix {
  public:
    YarnMix(std::size_t n_rot, double base, const YarnScaling& yarn) : ext_factor_(yarn.ext_factor) {
        if (ext_factor_ == 0.0) {
            return;
        }
        if (!(yarn.n_ctx_orig > 0.0) || !(yarn.beta_fast > 0.0) || !(yarn.beta_slow > 0.0)) {
            throw std::invalid_argument("ext_factor needs n_ctx_orig, beta_fast and beta_slow above 0");
        }
        low_ = std::max(0.0, std::floor(correction_dim(yarn.beta_fast, n_rot, base, yarn.n_ctx_orig)));
        high_ = std::min(static_cast<double>(n_rot - 1),
                         std::ceil(correction_dim(yarn.beta_slow, n_rot, base, yarn.n_ctx_orig)));
    }

    [[nodiscard]] double operator()(std::size_t pair) const {
        const double ramp = (static_cast<double>(pair) - low_) / std::max(0.001, high_ - low_);
        return ext_factor_ * (1.0 - std::clamp(ramp, 0.0, 1.0));
    }

  private:
    double ext_factor_;
    double low_ = 0.0;
    double high_ = 0.0;
};

}  // namespace

std::optional<RopePairing> parse_rope_pairing(std::string_view name) noexcept {
    if (name == "norm") {
        return RopePairing::kNorm;
    }
    if (name == "neox") {
        return RopePairing::kNeox;
    }
    return std::nullopt;
}

std::string_view name_of(RopePairing pairing) noexcept {
    return pairing == RopePairing::kNorm ? "norm" : "neox";
}

std::optional<RopeKernel> parse_rope_kernel(std::string_view name) noexcept {
    if (name == "scalar") {
        return RopeKernel::kScalar;
    }
    if (name == "f16c") {
        return RopeKernel::kF16c;
    }
    return std::nullopt;
}

std::string_view name_of(RopeKernel kernel) noexcept {
    return kernel == RopeKernel::kScalar ? "scalar" : "f16c";
}

std::vector<RopeKernel> rope_kernels() {
    if (cpu_features().f16c) {
        return {RopeKernel::kF16c, RopeKernel::kScalar};
    }
    return {RopeKernel::kScalar};
}

std::vector<double> rope_frequencies(std::size_t n_rot, double base, double scale,
                                     std::span<const float> factors, const YarnScaling& yarn) {
    if (n_rot == 0 || n_rot % 2 != 0) {
        throw std::invalid_argument("n_rot must be even and above 0");
    }
    if (!(base > 1.0) || !(scale > 0.0) || !std::isfinite(base) || !std::isfinite(scale)) {
        throw std::invalid_argument("base must be above 1 and scale above 0, both finite");
    }
    if (!factors.empty() && factors.size() != n_rot / 2) {
        throw std::invalid_argument("factors must hold n_rot / 2 numbers");
    }
    const YarnMix mix(n_rot, base, yarn);
    std::vector<double> result(n_rot / 2);
    for (std::size_t i = 0; i < result.size(); ++i) {
        const double factor = factors.empty() ? 1.0 : static_cast<double>(factors[i]);
        if (!(factor > 0.0)) {
            throw std::invalid_argument("frequency factors must be above 0");
        }
        const double plain =
            std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(n_rot)) / factor;
        const double kept = mix(i);
        result[i] = plain * (scale * (1.0 - kept) + kept);
    }
    return result;
}

void rotate_keys(Half* rows, const RopeShape& shape, std::span<const std::int32_t> deltas,
                 std::span<const double> inv_freq, RopeKernel kernel) {
    check(shape, inv_freq);
    const auto rotate = detail::select_rotation(kernel, shape.pairing);
    const std::size_t row_size = shape.n_head * shape.head_dim;
    detail::RotationTable table(inv_freq.size());
    std::int32_t filled_for = 0;
    for (std::size_t r = 0; r < deltas.size(); ++r) {
        if (deltas[r] == 0) {
            continue;
        }
        if (deltas[r] != filled_for) {
            fill_table(deltas[r], inv_freq, table);
            filled_for = deltas[r];
        }
        for (std::size_t h = 0; h < shape.n_head; ++h) {
            rotate(rows + r * row_size + h * shape.head_dim, table);
        }
    }
}

}  // namespace nexus

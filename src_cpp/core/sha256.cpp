#include "core/sha256.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/cpu.hpp"

#if defined(NEXUS_X86)
#include <immintrin.h>
#endif

namespace nexus {
namespace {

using State = std::array<std::uint32_t, 8>;

// Fractional parts of the cube roots of the first 64 primes.
alignas(16) constexpr std::array<std::uint32_t, 64> kRound = {
    0x428A2F98U, 0x71374491U, 0xB5C0FBCFU, 0xE9B5DBA5U, 0x3956C25BU, 0x59F111F1U, 0x923F82A4U, 0xAB1C5ED5U,
    0xD807AA98U, 0x12835B01U, 0x243185BEU, 0x550C7DC3U, 0x72BE5D74U, 0x80DEB1FEU, 0x9BDC06A7U, 0xC19BF174U,
    0xE49B69C1U, 0xEFBE4786U, 0x0FC19DC6U, 0x240CA1CCU, 0x2DE92C6FU, 0x4A7484AAU, 0x5CB0A9DCU, 0x76F988DAU,
    0x983E5152U, 0xA831C66DU, 0xB00327C8U, 0xBF597FC7U, 0xC6E00BF3U, 0xD5A79147U, 0x06CA6351U, 0x14292967U,
    0x27B70A85U, 0x2E1B2138U, 0x4D2C6DFCU, 0x53380D13U, 0x650A7354U, 0x766A0ABBU, 0x81C2C92EU, 0x92722C85U,
    0xA2BFE8A1U, 0xA81A664BU, 0xC24B8B70U, 0xC76C51A3U, 0xD192E819U, 0xD6990624U, 0xF40E3585U, 0x106AA070U,
    0x19A4C116U, 0x1E376C08U, 0x2748774CU, 0x34B0BCB5U, 0x391C0CB3U, 0x4ED8AA4AU, 0x5B9CCA4FU, 0x682E6FF3U,
    0x748F82EEU, 0x78A5636FU, 0x84C87814U, 0x8CC70208U, 0x90BEFFFAU, 0xA4506CEBU, 0xBEF9A3F7U, 0xC67178F2U};

std::uint32_t big_endian(const std::byte* four) noexcept {
    return std::to_integer<std::uint32_t>(four[0]) << 24U | std::to_integer<std::uint32_t>(four[1]) << 16U |
           std::to_integer<std::uint32_t>(four[2]) << 8U | std::to_integer<std::uint32_t>(four[3]);
}

void compress_scalar(State& state, const std::byte* block, std::size_t n_blocks) noexcept {
    std::array<std::uint32_t, 64> w;
    for (; n_blocks > 0; --n_blocks, block += 64) {
        for (std::size_t t = 0; t < 16; ++t) {
            w[t] = big_endian(block + 4 * t);
        }
        for (std::size_t t = 16; t < 64; ++t) {
            const std::uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3U);
            const std::uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10U);
            w[t] = w[t - 16] + s0 + w[t - 7] + s1;
        }
        auto [a, b, c, d, e, f, g, h] = state;
        for (std::size_t t = 0; t < 64; ++t) {
            const std::uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
            const std::uint32_t chosen = (e & f) ^ (~e & g);
            const std::uint32_t first = h + sum1 + chosen + kRound[t] + w[t];
            const std::uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
            const std::uint32_t second = sum0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g;
            g = f;
            f = e;
            e = d + first;
            d = c;
            c = b;
            b = a;
            a = first + second;
        }
        const State turned = {a, b, c, d, e, f, g, h};
        for (std::size_t i = 0; i < state.size(); ++i) {
            state[i] += turned[i];
        }
    }
}

#if defined(NEXUS_X86)

// The SHA extensions keep the state as two vectors, (A B E F) and (C D G H), highest lane first.
__attribute__((target("sha,sse4.1,ssse3"))) void compress_sha_ni(State& state, const std::byte* block,
                                                                 std::size_t n_blocks) noexcept {
    const __m128i swap = _mm_set_epi64x(0x0C0D0E0F08090A0BLL, 0x0405060700010203LL);
    const auto load = [](const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); };
    const __m128i badc = _mm_shuffle_epi32(load(state.data()), 0xB1);
    const __m128i hgfe = _mm_shuffle_epi32(load(state.data() + 4), 0x1B);
    __m128i abef = _mm_alignr_epi8(badc, hgfe, 8);
    __m128i cdgh = _mm_blend_epi16(hgfe, badc, 0xF0);
    for (; n_blocks > 0; --n_blocks, block += 64) {
        const __m128i abef_before = abef;
        const __m128i cdgh_before = cdgh;
        __m128i w0 = _mm_shuffle_epi8(load(block), swap);
        __m128i w1 = _mm_shuffle_epi8(load(block + 16), swap);
        __m128i w2 = _mm_shuffle_epi8(load(block + 32), swap);
        __m128i w3 = _mm_shuffle_epi8(load(block + 48), swap);
        for (std::size_t quad = 0; quad < 16; ++quad) {
            const __m128i keyed = _mm_add_epi32(w0, load(kRound.data() + 4 * quad));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, keyed);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(keyed, 0x0E));
            const __m128i mixed = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8(w3, w2, 4));
            w0 = w1;
            w1 = w2;
            w2 = w3;
            w3 = _mm_sha256msg2_epu32(mixed, w2);
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
    const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data()), _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data() + 4), _mm_alignr_epi8(dchg, feba, 8));
}

#endif

}  // namespace

Sha256::Sha256(Implementation implementation) noexcept : compress_(compress_scalar) {
#if defined(NEXUS_X86)
    if (implementation == Implementation::kFastest && cpu_features().sha_ni) {
        compress_ = compress_sha_ni;
    }
#else
    static_cast<void>(implementation);
#endif
}

void Sha256::update(std::span<const std::byte> bytes) noexcept {
    n_bytes_ += bytes.size();
    if (n_pending_ > 0) {
        const std::size_t n = std::min(bytes.size(), kBlockBytes - n_pending_);
        std::copy_n(bytes.begin(), n, pending_.begin() + static_cast<std::ptrdiff_t>(n_pending_));
        n_pending_ += n;
        bytes = bytes.subspan(n);
        if (n_pending_ < kBlockBytes) {
            return;
        }
        compress_(state_, pending_.data(), 1);
        n_pending_ = 0;
    }
    compress_(state_, bytes.data(), bytes.size() / kBlockBytes);
    const auto rest = bytes.subspan(bytes.size() / kBlockBytes * kBlockBytes);
    std::copy(rest.begin(), rest.end(), pending_.begin());
    n_pending_ = rest.size();
}

Sha256::Digest Sha256::finish() noexcept {
    const std::uint64_t n_bits = n_bytes_ * 8;
    std::array<std::byte, 2 * kBlockBytes> tail{};
    std::copy_n(pending_.begin(), n_pending_, tail.begin());
    tail[n_pending_] = std::byte{0x80};
    const std::size_t n_blocks = n_pending_ + 9 <= kBlockBytes ? 1 : 2;
    for (std::size_t i = 0; i < 8; ++i) {
        tail[n_blocks * kBlockBytes - 1 - i] = static_cast<std::byte>(n_bits >> (8 * i) & 0xFFU);
    }
    compress_(state_, tail.data(), n_blocks);
    Digest digest;
    for (std::size_t i = 0; i < digest.size(); ++i) {
        digest[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)) & 0xFFU);
    }
    return digest;
}

}  // namespace nexus

// SHA-256 against published vectors, whole and in pieces, on every implementation the processor has.

#include <cstring>
#include <string>
#include <string_view>

#include "core/sha256.hpp"
#include "tests/check.hpp"

using nexus::Sha256;

namespace {

std::string hex(const Sha256::Digest& digest) {
    std::string text;
    for (const std::byte byte : digest) {
        text += "0123456789abcdef"[std::to_integer<std::size_t>(byte >> 4U)];
        text += "0123456789abcdef"[std::to_integer<std::size_t>(byte & std::byte{15})];
    }
    return text;
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string digest(std::string_view text, std::size_t piece) {
    Sha256 hash;
    for (std::size_t i = 0; i < text.size(); i += piece) {
        hash.update(bytes_of(text.substr(i, piece)));
    }
    return hex(hash.finish());
}

// The examples of FIPS 180-2, appendix B, and the empty message.
void test_published_vectors() {
    CHECK(hex(Sha256().finish()) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(digest("abc", 3) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(digest(std::string(1000000, 'a'), 4096) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// However a message is cut, its digest is the same; lengths around the padding's edge included.
void test_pieces() {
    for (std::size_t n = 0; n <= 200; ++n) {
        const std::string text(n, 'x');
        for (const std::size_t piece : {1U, 7U, 63U, 64U, 65U}) {
            CHECK(digest(text, piece) == digest(text, 1000));
        }
    }
    CHECK(digest(std::string(55, 'a'), 55) ==
          "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
    CHECK(digest(std::string(56, 'a'), 56) ==
          "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
}

// The portable code and the SHA instructions give the same digests.
void test_implementations_agree() {
    std::string text;
    for (int i = 0; i < 5000; ++i) {
        text += static_cast<char>(i * 37 + i / 256);
    }
    Sha256 fast;
    Sha256 portable(Sha256::Implementation::kPortable);
    fast.update(bytes_of(text));
    portable.update(bytes_of(text));
    CHECK(hex(fast.finish()) == hex(portable.finish()));
}

}  // namespace

int main() {
    test_published_vectors();
    test_pieces();
    test_implementations_agree();
    return nexus::testing::finish();
}

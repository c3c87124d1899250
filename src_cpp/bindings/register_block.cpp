#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "core/block_file.hpp"

namespace nexus::bindings {
namespace {

template <std::size_t N>
py::bytes to_python(const std::array<std::byte, N>& hash) {
    return {reinterpret_cast<const char*>(hash.data()), N};
}

template <std::size_t N>
std::array<std::byte, N> hash_from(const py::bytes& value, const char* name) {
    const auto text = static_cast<std::string_view>(value);
    if (text.size() != N) {
        throw std::invalid_argument(std::string(name) + " must be " + std::to_string(N) + " bytes long");
    }
    std::array<std::byte, N> hash;
    std::memcpy(hash.data(), text.data(), N);
    return hash;
}

RopePairing pairing_named(const std::string& name) {
    if (const auto pairing = parse_rope_pairing(name)) {
        return *pairing;
    }
    throw std::invalid_argument("pairing must be 'norm' or 'neox', not '" + name + "'");
}

BlockHeader make_header(std::uint32_t n_layer, std::uint32_t k_row_bytes, std::uint32_t v_row_bytes,
                        bool v_trans, std::uint32_t head_dim, std::uint16_t n_rot, const std::string& pairing,
                        float rope_base, float rope_scale, float ext_factor, float attn_factor,
                        std::uint32_t n_ctx_orig, const std::optional<py::bytes>& rope_factors_hash,
                        const py::bytes& fingerprint, std::uint32_t anchor,
                        const std::optional<py::bytes>& context_hash) {
    BlockHeader header;
    header.anchor = anchor;
    header.n_layer = n_layer;
    header.k_row_bytes = k_row_bytes;
    header.v_row_bytes = v_row_bytes;
    header.v_trans = v_trans ? 1 : 0;
    header.pairing = pairing_named(pairing);
    header.n_rot = n_rot;
    header.head_dim = head_dim;
    header.n_ctx_orig = n_ctx_orig;
    header.rope_base = rope_base;
    header.rope_scale = rope_scale;
    header.ext_factor = ext_factor;
    header.attn_factor = attn_factor;
    if (rope_factors_hash) {
        header.rope_factors_hash = hash_from<8>(*rope_factors_hash, "rope_factors_hash");
    }
    header.fingerprint = hash_from<16>(fingerprint, "fingerprint");
    if (context_hash) {
        header.context_hash = hash_from<16>(*context_hash, "context_hash");
    }
    return header;
}

std::vector<const Half*> checked_rows(const std::vector<Array<Half>>& rows, const char* name,
                                      std::size_t n_tokens, std::size_t width) {
    std::vector<const Half*> pointers;
    for (const Array<Half>& layer : rows) {
        require_2d(layer, name);
        if (layer.shape(0) != static_cast<py::ssize_t>(n_tokens) ||
            layer.shape(1) != static_cast<py::ssize_t>(width)) {
            throw std::invalid_argument("each of " + std::string(name) + " must be [" +
                                        std::to_string(n_tokens) + ", " + std::to_string(width) + "]");
        }
        pointers.push_back(layer.data());
    }
    return pointers;
}

BlockHeader write(const std::filesystem::path& path, const BlockHeader& header,
                  const Array<std::int32_t>& tokens, const std::vector<Array<Half>>& keys,
                  const std::vector<Array<Half>>& values, const std::optional<Array<float>>& sensitivity) {
    const auto ids = as_span(tokens, "tokens");
    const auto key_rows = checked_rows(keys, "keys", ids.size(), header.k_row_bytes / sizeof(Half));
    const auto value_rows = checked_rows(values, "values", ids.size(), header.v_row_bytes / sizeof(Half));
    const auto numbers = sensitivity ? as_span(*sensitivity, "sensitivity") : std::span<const float>{};
    const py::gil_scoped_release release;
    return write_block(path.string(), header, ids, key_rows, value_rows, numbers);
}

// A read-only array over the mapping; it keeps the block, and so the mapping, alive.
template <typename T>
Array<T> view(const py::object& block, const T* data, std::vector<py::ssize_t> shape) {
    Array<T> array(std::move(shape), data, block);
    array.attr("setflags")(py::arg("write") = false);
    return array;
}

Array<Half> layer_view(const py::object& self, const Half* rows, std::uint32_t row_bytes) {
    const auto n_tokens = static_cast<py::ssize_t>(self.cast<const BlockFile&>().header().n_tokens);
    return view(self, rows, {n_tokens, static_cast<py::ssize_t>(row_bytes / sizeof(Half))});
}

void register_header(py::module_& module) {
    py::class_<BlockHeader>(module, "BlockHeader",
                            "What a tool block was compiled for: model, rotation, anchor, context.")
        .def(py::init(&make_header), py::kw_only(), py::arg("n_layer"), py::arg("k_row_bytes"),
             py::arg("v_row_bytes"), py::arg("v_trans"), py::arg("head_dim"), py::arg("n_rot"),
             py::arg("pairing"), py::arg("rope_base"), py::arg("rope_scale") = 1.0F,
             py::arg("ext_factor") = 0.0F, py::arg("attn_factor") = 1.0F, py::arg("n_ctx_orig") = 0,
             py::arg("rope_factors_hash") = py::none(), py::arg("fingerprint"), py::arg("anchor") = 0,
             py::arg("context_hash") = py::none(),
             "Hashes are bytes: 8 for rope_factors_hash, 16 for the others; a hash that is None is all zero.")
        .def_readonly("version", &BlockHeader::version, "2 with a sensitivity, 1 without.")
        .def_readonly("anchor", &BlockHeader::anchor, "Position of the first token when it was compiled.")
        .def_readonly("n_tokens", &BlockHeader::n_tokens)
        .def_readonly("n_layer", &BlockHeader::n_layer)
        .def_readonly("k_row_bytes", &BlockHeader::k_row_bytes)
        .def_readonly("v_row_bytes", &BlockHeader::v_row_bytes)
        .def_readonly("k_type", &BlockHeader::k_type)
        .def_readonly("v_type", &BlockHeader::v_type)
        .def_property_readonly("v_trans", [](const BlockHeader& header) { return header.v_trans == 1; })
        .def_property_readonly("pairing",
                               [](const BlockHeader& header) { return std::string(name_of(header.pairing)); })
        .def_readonly("n_rot", &BlockHeader::n_rot)
        .def_readonly("head_dim", &BlockHeader::head_dim)
        .def_readonly("n_ctx_orig", &BlockHeader::n_ctx_orig)
        .def_readonly("rope_base", &BlockHeader::rope_base)
        .def_readonly("rope_scale", &BlockHeader::rope_scale)
        .def_readonly("ext_factor", &BlockHeader::ext_factor)
        .def_readonly("attn_factor", &BlockHeader::attn_factor)
        .def_property_readonly("rope_factors_hash",
                               [](const BlockHeader& header) { return to_python(header.rope_factors_hash); })
        .def_property_readonly("fingerprint",
                               [](const BlockHeader& header) { return to_python(header.fingerprint); })
        .def_property_readonly("context_hash",
                               [](const BlockHeader& header) { return to_python(header.context_hash); })
        .def_property_readonly("payload_hash",
                               [](const BlockHeader& header) { return to_python(header.payload_hash); })
        .def_property_readonly("file_bytes", &BlockHeader::file_bytes)
        .def("check_model", &check_same_model, py::arg("model"),
             R"(Raise FormatError naming the first field in which this block does not fit the model.

All fields count but anchor, n_tokens, context_hash and payload_hash; `expected` is the model's value.)");
}

void register_file(py::module_& module) {
    py::class_<BlockFile>(module, "BlockFile", "A tool block mapped for reading; its arrays are views.")
        .def(py::init([](const std::filesystem::path& path) {
                 return std::make_unique<BlockFile>(path.string());
             }),
             py::arg("path"),
             "Raises FormatError for a truncated or foreign file, naming the field, and OSError when "
             "unreadable.")
        .def_property_readonly("header", &BlockFile::header)
        .def_property_readonly("tokens",
                               [](const py::object& self) {
                                   const auto tokens = self.cast<const BlockFile&>().tokens();
                                   return view(self, tokens.data(),
                                               {static_cast<py::ssize_t>(tokens.size())});
                               })
        .def_property_readonly(
            "sensitivity",
            [](const py::object& self) -> std::optional<Array<float>> {
                const auto numbers = self.cast<const BlockFile&>().sensitivity();
                if (numbers.empty()) {
                    return std::nullopt;
                }
                return view(self, numbers.data(), {static_cast<py::ssize_t>(numbers.size())});
            },
            "How far each token's rows moved between contexts, float32 [n_tokens]; None "
            "when the block was compiled behind one.")
        .def(
            "key",
            [](const py::object& self, std::size_t layer) {
                const auto& block = self.cast<const BlockFile&>();
                return layer_view(self, block.key(layer), block.header().k_row_bytes);
            },
            py::arg("layer"),
            "K rows of a layer, float16 [n_tokens, k_row_bytes / 2], rotated from the anchor.")
        .def(
            "value",
            [](const py::object& self, std::size_t layer) {
                const auto& block = self.cast<const BlockFile&>();
                return layer_view(self, block.value(layer), block.header().v_row_bytes);
            },
            py::arg("layer"), "V rows of a layer, float16 [n_tokens, v_row_bytes / 2].")
        .def("verify", &BlockFile::verify, py::call_guard<py::gil_scoped_release>(),
             "Read the payload; raises FormatError when its hash is not the header's.");
}

}  // namespace

void register_block(py::module_& module) {
    register_header(module);
    module.def(
        "rope_factors_hash",
        [](const std::optional<Array<float>>& factors) {
            return to_python(
                hash_rope_factors(factors ? as_span(*factors, "factors") : std::span<const float>{}));
        },
        py::arg("factors"), "8 bytes that name frequency factors in a block header; all zero for None.");
    module.def(
        "write_block", &write, py::arg("path"), py::arg("header"), py::arg("tokens").noconvert(),
        py::arg("keys").noconvert(), py::arg("values").noconvert(),
        py::arg("sensitivity").noconvert() = py::none(),
        R"(Write a tool block atomically and return its header, with token count and payload hash filled in.

tokens is int32 [n]; keys and values hold one float16 [n, row_bytes / 2] per layer; sensitivity, if the block
was compiled behind several contexts, is float32 [n], finite and at least 0.)");
    register_file(module);
}

}  // namespace nexus::bindings

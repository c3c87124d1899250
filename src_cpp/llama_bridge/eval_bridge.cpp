#include "llama_bridge/eval_bridge.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <utility>

namespace nexus::bridge {
namespace {

constexpr std::string_view positions_name = "inp_pos";
constexpr std::string_view mask_name = "attn_inp_kq_mask";
constexpr std::string_view destinations_name = "attn_inp_k_idxs";
constexpr std::string_view value_destinations_name = "attn_inp_v_idxs";
constexpr std::string_view scale_name = "inp_attn_scale";
constexpr std::string_view attention_prefix = "kq_soft_max-";

// A half-precision element, as the mask has it with flash attention.
struct Half {
    std::uint16_t bits;
};
constexpr std::uint16_t half_exponent = 0x7C00;
constexpr std::uint16_t half_minus_infinity = 0xFC00;
constexpr std::uint16_t half_magnitude = 0x7FFF;

bool is_finite(float value) { return std::isfinite(value); }
bool is_finite(Half value) { return (value.bits & half_exponent) != half_exponent; }
bool is_zero(float value) { return value == 0.0F; }
bool is_zero(Half value) { return (value.bits & half_magnitude) == 0; }
void hide(float& value) { value = -std::numeric_limits<float>::infinity(); }
void hide(Half& value) { value.bits = half_minus_infinity; }

std::string_view name_of(const Tensor& tensor) {
    return {tensor.name.data(), ::strnlen(tensor.name.data(), tensor.name.size())};
}

// A position of the sequence, and the cell that holds it.
using Place = std::pair<std::int32_t, std::int64_t>;

// Places in rising order of position, for binary search.
std::vector<Place> cells_by_position(const Plan& plan, const Report& report) {
    std::vector<Place> table;
    table.reserve(report.earlier_cells.size() + report.destination_cells.size());
    for (std::size_t i = 0; i < report.earlier_cells.size(); ++i) {
        table.emplace_back(plan.cell_positions[i], report.earlier_cells[i]);
    }
    for (std::size_t i = 0; i < report.destination_cells.size(); ++i) {
        table.emplace_back(plan.first_position + static_cast<std::int32_t>(i), report.destination_cells[i]);
    }
    std::sort(table.begin(), table.end());
    return table;
}

void require(bool condition, const char* message) {
    if (!condition) {
        throw std::invalid_argument(message);
    }
}

void check_hidden(const Plan& plan) {
    if (plan.hidden_offsets.empty()) {
        require(plan.hidden.empty(), "hidden ranges need one offset per token and a last one");
        return;
    }
    require(plan.hidden_offsets.size() == static_cast<std::size_t>(plan.n_tokens) + 1,
            "hidden_offsets: expected n_tokens + 1 entries");
    require(std::is_sorted(plan.hidden_offsets.begin(), plan.hidden_offsets.end()) &&
                plan.hidden_offsets.front() == 0 &&
                plan.hidden_offsets.back() == static_cast<std::int64_t>(plan.hidden.size()),
            "hidden_offsets: expected to rise from 0 to the number of ranges");
}

void check_in_place(const Plan& plan) {
    if (!plan.in_place) {
        return;
    }
    require(!plan.positions.empty() && plan.hidden_offsets.empty(),
            "in place: expected positions, and nothing hidden");
    require(std::adjacent_find(plan.positions.begin(), plan.positions.end(), std::greater_equal<>()) ==
                plan.positions.end(),
            "in place: expected positions that rise");
    require(plan.positions.back() < plan.first_position,
            "in place: expected positions before that of the call's first token");
}

void check_capture(const Plan& plan) {
    if (plan.capture_layers.empty()) {
        return;
    }
    require(0 <= plan.capture_first && plan.capture_first < plan.capture_last &&
                plan.capture_last <= plan.n_tokens,
            "capture: expected 0 <= first < last <= n_tokens");
    require(plan.capture_heads > 0 && plan.capture_cells > 0, "capture: expected heads and cells above 0");
    const auto rows = plan.capture_layers.size() * static_cast<std::size_t>(plan.capture_heads) *
                      static_cast<std::size_t>(plan.capture_last - plan.capture_first);
    require(plan.capture_buffer.size() >= rows * static_cast<std::size_t>(plan.capture_cells),
            "capture: the buffer is too small");
}

void check_plan(const Plan& plan) {
    require(plan.n_tokens > 0, "n_tokens: expected at least 1");
    require(plan.positions.empty() || plan.positions.size() == static_cast<std::size_t>(plan.n_tokens),
            "positions: expected one per token");
    check_hidden(plan);
    check_in_place(plan);
    check_capture(plan);
}

}  // namespace

EvalBridge::EvalBridge(const Library& library, std::string missing)
    : library_(library), layout_problem_(missing.empty() ? verify_layout(library) : std::move(missing)) {
    mode_.store(layout_problem_.empty() ? Mode::check : Mode::idle, std::memory_order_release);
}

std::string EvalBridge::layout_problem() const {
    const std::lock_guard lock(problem_mutex_);
    return layout_problem_;
}

void EvalBridge::arm(Plan plan) {
    check_plan(plan);
    if (mode_.load(std::memory_order_acquire) == Mode::plan) {
        throw std::logic_error("a plan is armed already");
    }
    plan_ = std::move(plan);
    report_ = Report{};
    first_node_ = nullptr;
    positions_done_ = plan_.positions.empty();
    mask_done_ = plan_.hidden_offsets.empty() && !plan_.map_cells && !plan_.in_place;
    destinations_done_ = mask_done_;
    redirected_ = !plan_.in_place;
    key_destinations_ = value_destinations_ = nullptr;
    mode_.store(Mode::plan, std::memory_order_release);
}

Report EvalBridge::disarm() {
    const bool settled = first_graph_checked() || !layout_problem_.empty();
    mode_.store(settled ? Mode::idle : Mode::check, std::memory_order_release);
    if (report_.problem.empty() && report_.graphs > 0) {
        if (!inputs_done()) {
            fail(
                "the graph has no input named inp_pos, attn_inp_kq_mask, attn_inp_k_idxs or "
                "attn_inp_v_idxs");
        } else if (report_.captured_layers.size() != plan_.capture_layers.size()) {
            fail("the graph has no attention rows for some of the layers");
        }
    }
    plan_ = Plan{};
    return std::exchange(report_, Report{});
}

bool EvalBridge::on_node(Tensor* tensor, bool ask, void* user_data) noexcept {
    auto& bridge = *static_cast<EvalBridge*>(user_data);
    if (bridge.mode_.load(std::memory_order_relaxed) == Mode::idle) {
        return false;
    }
    try {
        return bridge.visit(*tensor, ask);
    } catch (const std::exception& error) {
        bridge.fail(error.what());
        // The answer to `ask` decides whether the node is shown again; to the second call, whether to go on.
        return !ask;
    }
}

bool EvalBridge::on_abort(void* user_data) noexcept {
    return static_cast<const EvalBridge*>(user_data)->abort_requested();
}

bool EvalBridge::visit(Tensor& tensor, bool ask) {
    const auto mode = mode_.load(std::memory_order_relaxed);
    if (!first_graph_checked() && ask) {
        check_graph(tensor);
    }
    if (mode != Mode::plan || !layout_problem_.empty()) {
        return !ask;
    }
    if (!ask) {
        if (const auto layer = captured_layer(tensor)) {
            capture(tensor, *layer);
        }
        return true;
    }
    count_graph(tensor);
    if (!inputs_done()) {
        visit_sources(tensor);
    }
    return captured_layer(tensor).has_value();
}

// The whole first graph is compared; a second sight of its first node ends it.
void EvalBridge::check_graph(const Tensor& tensor) {
    const bool again = &tensor == check_first_node_;
    if (check_first_node_ == nullptr) {
        check_first_node_ = &tensor;
    }
    auto found = again ? std::string() : verify_tensor(library_, tensor);
    for (const Tensor* source : tensor.src) {
        if (!again && found.empty() && source != nullptr) {
            found = verify_tensor(library_, *source);
        }
    }
    if (found.empty() && !again) {
        return;
    }
    if (!found.empty()) {
        const std::lock_guard lock(problem_mutex_);
        layout_problem_ = std::move(found);
    }
    graph_checked_.store(true, std::memory_order_release);
    auto expected = Mode::check;
    mode_.compare_exchange_strong(expected, Mode::idle, std::memory_order_acq_rel);
}

// A node is asked about once per graph, so seeing the first one again means another graph.
void EvalBridge::count_graph(const Tensor& tensor) {
    if (first_node_ == nullptr) {
        first_node_ = &tensor;
        report_.graphs = 1;
    } else if (&tensor == first_node_) {
        ++report_.graphs;
        fail("the decode call ran more than one graph");
    }
}

bool EvalBridge::inputs_done() const {
    return positions_done_ && mask_done_ && destinations_done_ && redirected_;
}

void EvalBridge::visit_sources(const Tensor& tensor) {
    for (Tensor* source : tensor.src) {
        if (source != nullptr && report_.problem.empty()) {
            visit_input(*source);
        }
    }
    if (!redirected_ && mask_done_ && value_destinations_ != nullptr && report_.problem.empty()) {
        redirect_rows();
    }
}

void EvalBridge::visit_input(Tensor& input) {
    const auto name = name_of(input);
    if (!positions_done_ && name == positions_name) {
        patch_positions(input);
    } else if (!destinations_done_ && name == destinations_name) {
        read_destinations(input);
    } else if (!redirected_ && value_destinations_ == nullptr && name == value_destinations_name) {
        read_value_destinations(input);
    } else if (!plan_.positions.empty() && name == scale_name) {
        check_scale(input);
    } else if (!mask_done_ && name == mask_name) {
        visit_mask(input);
    }
}

bool EvalBridge::writable(const Tensor& input, ElementType type, std::int64_t elements) {
    if (input.buffer == nullptr || !library_.buffer_is_host(input.buffer)) {
        fail("the input " + std::string(name_of(input)) + " is not in host memory");
        return false;
    }
    const auto* base = static_cast<const std::byte*>(library_.buffer_get_base(input.buffer));
    const auto* data = static_cast<const std::byte*>(input.data);
    const auto bytes = library_.count_bytes(&input);
    const bool inside = data >= base && data + bytes <= base + library_.buffer_get_size(input.buffer);
    const auto needed =
        static_cast<std::size_t>(elements) * library_.type_size(static_cast<std::int32_t>(type));
    if (input.type != static_cast<std::int32_t>(type) || !inside || bytes < needed) {
        fail("the input " + std::string(name_of(input)) + " has another type or size than expected");
        return false;
    }
    return true;
}

void EvalBridge::patch_positions(Tensor& input) {
    if (!writable(input, ElementType::i32, plan_.n_tokens)) {
        return;
    }
    if (input.ne[0] != plan_.n_tokens) {
        return fail("inp_pos does not hold one position per token");
    }
    std::copy(plan_.positions.begin(), plan_.positions.end(), static_cast<std::int32_t*>(input.data));
    positions_done_ = true;
}

void EvalBridge::read_destinations(Tensor& input) {
    if (!writable(input, ElementType::i64, plan_.n_tokens)) {
        return;
    }
    if (input.ne[0] != plan_.n_tokens) {
        return fail("attn_inp_k_idxs does not hold one cell per token");
    }
    const auto* cells = static_cast<const std::int64_t*>(input.data);
    report_.destination_cells.assign(cells, cells + plan_.n_tokens);
    key_destinations_ = &input;
    destinations_done_ = true;
}

void EvalBridge::read_value_destinations(Tensor& input) {
    const auto elements = input.ne[0];
    if (elements < plan_.n_tokens || elements % plan_.n_tokens != 0 ||
        input.ne[1] * input.ne[2] * input.ne[3] != 1) {
        return fail("attn_inp_v_idxs does not hold as many cells for each token");
    }
    if (writable(input, ElementType::i64, elements)) {
        value_destinations_ = &input;
    }
}

// Some models scale the queries by a step function of the position, which llama.cpp has taken from the
// cells'. The steps rise from 1, and the cells' positions lie behind those of the plan: all 1 here is all 1
// there.
void EvalBridge::check_scale(const Tensor& input) {
    if (!writable(input, ElementType::f32, plan_.n_tokens)) {
        return;
    }
    const auto* scale = static_cast<const float*>(input.data);
    if (std::any_of(scale, scale + plan_.n_tokens, [](float value) { return value != 1.0F; })) {
        fail("the model scales attention by position");
    }
}

void EvalBridge::visit_mask(Tensor& input) {
    const auto cells = input.ne[0];
    if (input.ne[1] < plan_.n_tokens || input.ne[2] * input.ne[3] != 1 || cells <= 0 ||
        cells > std::numeric_limits<std::int32_t>::max()) {
        return fail("attn_inp_kq_mask does not hold one row per token");
    }
    if (!destinations_done_) {
        return fail("attn_inp_kq_mask is read before the destination cells are known");
    }
    report_.n_kv = static_cast<std::int32_t>(cells);
    if (input.type == static_cast<std::int32_t>(ElementType::f32)) {
        if (writable(input, ElementType::f32, cells * plan_.n_tokens)) {
            patch_mask<float>(input);
        }
    } else if (writable(input, ElementType::f16, cells * plan_.n_tokens)) {
        patch_mask<Half>(input);
    }
}

// Cells of the sequence that the first query sees, its own call's cells left out.
template <typename Element>
std::vector<std::int64_t> EvalBridge::visible_cells(const Tensor& input) const {
    const auto* row = static_cast<const Element*>(input.data);
    std::vector<std::int64_t> own(report_.destination_cells);
    std::sort(own.begin(), own.end());
    std::vector<std::int64_t> cells;
    for (std::int64_t cell = 0; cell < input.ne[0]; ++cell) {
        if (is_finite(row[cell]) && !std::binary_search(own.begin(), own.end(), cell)) {
            cells.push_back(cell);
        }
    }
    return cells;
}

template <typename Element>
void EvalBridge::patch_mask(Tensor& input) {
    report_.earlier_cells = visible_cells<Element>(input);
    mask_done_ = true;
    auto* rows = static_cast<Element*>(input.data);
    const auto distant = [rows](std::int64_t cell) { return !is_zero(rows[cell]); };
    if (!plan_.positions.empty() &&
        std::any_of(report_.earlier_cells.begin(), report_.earlier_cells.end(), distant)) {
        return fail("the mask holds distances, which the plan would falsify");
    }
    if (plan_.hidden_offsets.empty() && !plan_.in_place) {
        return;
    }
    if (report_.earlier_cells.size() != plan_.cell_positions.size()) {
        return fail("the sequence has other cells than the plan says");
    }
    if (plan_.in_place) {
        hide_what_follows(rows, input.ne[0]);
    } else {
        hide_ranges(rows, input.ne[0]);
    }
}

template <typename Element>
void EvalBridge::hide_ranges(Element* rows, std::int64_t row_length) {
    const auto table = cells_by_position(plan_, report_);
    const auto below = [](const Place& place, std::int32_t position) { return place.first < position; };
    for (std::size_t query = 0; query + 1 < plan_.hidden_offsets.size(); ++query) {
        Element* row = rows + static_cast<std::ptrdiff_t>(query) * row_length;
        for (auto r = plan_.hidden_offsets[query]; r < plan_.hidden_offsets[query + 1]; ++r) {
            const auto range = plan_.hidden[static_cast<std::size_t>(r)];
            auto place = std::lower_bound(table.begin(), table.end(), range.begin, below);
            for (; place != table.end() && place->first < range.end; ++place) {
                hide(row[place->second]);
            }
        }
    }
}

// The call's own cells have the last positions of all, so they are hidden too; what they hold is never read.
template <typename Element>
void EvalBridge::hide_what_follows(Element* rows, std::int64_t row_length) {
    const auto table = cells_by_position(plan_, report_);
    const auto above = [](std::int32_t position, const Place& place) { return position < place.first; };
    auto place = table.begin();
    for (const auto position : plan_.positions) {
        place = std::upper_bound(place, table.end(), position, above);
        if (place == table.begin() || std::prev(place)->first != position) {
            return fail("the sequence has no row at position " + std::to_string(position) + " to write over");
        }
        report_.rewritten_cells.push_back(std::prev(place)->second);
        for (auto later = place; later != table.end(); ++later) {
            hide(rows[later->second]);
        }
        rows += row_length;
    }
}

// Values have one destination per token, or, when they are stored transposed, one per element: the cell plus
// a multiple of the cache's length. Either moves with the cell.
void EvalBridge::redirect_rows() {
    const auto tokens = static_cast<std::size_t>(plan_.n_tokens);
    const auto width = static_cast<std::size_t>(value_destinations_->ne[0]) / tokens;
    auto* values = static_cast<std::int64_t*>(value_destinations_->data);
    const auto stride = width > 1 ? values[1] - values[0] : 1;
    bool regular = stride >= (width > 1 ? report_.n_kv : 1);
    for (std::size_t i = 0; i < tokens * width && regular; ++i) {
        const auto element = static_cast<std::int64_t>(i % width);
        regular = values[i] == report_.destination_cells[i / width] + element * stride;
    }
    if (!regular) {
        return fail("attn_inp_v_idxs names other cells than attn_inp_k_idxs");
    }
    auto* keys = static_cast<std::int64_t*>(key_destinations_->data);
    for (std::size_t token = 0; token < tokens; ++token) {
        const auto cell = report_.rewritten_cells[token];
        keys[token] = cell;
        for (std::size_t element = 0; element < width; ++element) {
            values[token * width + element] = cell + static_cast<std::int64_t>(element) * stride;
        }
    }
    redirected_ = true;
}

std::optional<std::size_t> EvalBridge::captured_layer(const Tensor& tensor) const {
    if (plan_.capture_layers.empty()) {
        return std::nullopt;
    }
    const auto name = name_of(tensor);
    if (!name.starts_with(attention_prefix)) {
        return std::nullopt;
    }
    std::int32_t layer = -1;
    const auto digits = name.substr(attention_prefix.size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
    if (error != std::errc() || end != digits.data() + digits.size()) {
        return std::nullopt;
    }
    const auto found = std::find(plan_.capture_layers.begin(), plan_.capture_layers.end(), layer);
    if (found == plan_.capture_layers.end()) {
        return std::nullopt;
    }
    return static_cast<std::size_t>(found - plan_.capture_layers.begin());
}

// `tensor` is [cell, query, head] with cells innermost.
void EvalBridge::capture(const Tensor& tensor, std::size_t layer_index) {
    const auto cells = tensor.ne[0];
    if (tensor.type != static_cast<std::int32_t>(ElementType::f32) || cells > plan_.capture_cells ||
        tensor.ne[1] < plan_.n_tokens || tensor.ne[2] != plan_.capture_heads || tensor.ne[3] != 1 ||
        tensor.nb[0] != sizeof(float)) {
        return fail("the attention rows have another type or shape than expected");
    }
    report_.n_kv = static_cast<std::int32_t>(cells);
    const auto queries = static_cast<std::size_t>(plan_.capture_last - plan_.capture_first);
    const auto heads = static_cast<std::size_t>(plan_.capture_heads);
    const auto stride = static_cast<std::size_t>(plan_.capture_cells);
    const auto bytes = static_cast<std::size_t>(cells) * sizeof(float);
    for (std::size_t head = 0; head < heads; ++head) {
        for (std::size_t query = 0; query < queries; ++query) {
            const auto row = (layer_index * heads + head) * queries + query;
            const auto offset =
                head * tensor.nb[2] + (static_cast<std::size_t>(plan_.capture_first) + query) * tensor.nb[1];
            library_.tensor_get(&tensor, plan_.capture_buffer.data() + row * stride, offset, bytes);
        }
    }
    report_.captured_layers.push_back(plan_.capture_layers[layer_index]);
}

void EvalBridge::fail(std::string problem) {
    if (report_.problem.empty()) {
        report_.problem = std::move(problem);
    }
}

}  // namespace nexus::bridge

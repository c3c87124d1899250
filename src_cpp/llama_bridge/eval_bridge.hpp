#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llama_bridge/tensor_layout.hpp"

namespace nexus::bridge {

// Half-open range of cell positions.
struct PositionRange {
    std::int32_t begin;
    std::int32_t end;
};

// What one decode call of `n_tokens` tokens is to have changed in its graph inputs, and what to read back.
struct Plan {
    std::int32_t n_tokens = 0;
    // Position that llama.cpp gives to the first token of the call; the rest follow one by one.
    std::int32_t first_position = 0;
    // RoPE position of each token, or empty to leave them.
    std::vector<std::int32_t> positions;
    // Positions of the sequence's cells before the call, in ascending cell order.
    std::vector<std::int32_t> cell_positions;
    // hidden[hidden_offsets[i] .. hidden_offsets[i + 1]) are the ranges that query i must not see; or both
    // empty.
    std::vector<std::int64_t> hidden_offsets;
    std::vector<PositionRange> hidden;
    // Write the rows over those that the sequence holds at `positions`, which rise, in place of the cells
    // that llama.cpp has chosen. Each query sees what stands at its position or before; nothing else may be
    // hidden.
    bool in_place = false;
    // Ask for the destination cells, and for the sequence's cells as the first query sees them.
    bool map_cells = false;
    // Layers whose attention rows are copied, and the queries [first, last) of the call that are copied.
    std::vector<std::int32_t> capture_layers;
    std::int32_t capture_first = 0;
    std::int32_t capture_last = 0;
    // [layer][head][query][cell], `capture_cells` cells per row; owned by the caller until `disarm`.
    std::span<float> capture_buffer;
    std::int32_t capture_heads = 0;
    std::int32_t capture_cells = 0;
};

// What happened while a plan was armed.
struct Report {
    std::string problem;  // empty when the plan was carried out
    std::int32_t graphs = 0;
    std::int32_t n_kv = 0;
    std::vector<std::int64_t> destination_cells;
    std::vector<std::int64_t> earlier_cells;
    std::vector<std::int64_t> rewritten_cells;  // of a plan in place, one per token
    std::vector<std::int32_t> captured_layers;
};

// Evaluation and abort callbacks of one llama.cpp context. They run once per graph node on the thread that
// decodes, and take neither locks nor the interpreter. `arm` and `disarm` are called between decodes.
class EvalBridge {
  public:
    // `missing` names what the library does not have; then nothing but the abort works.
    explicit EvalBridge(const Library& library, std::string missing = {});
    EvalBridge(const EvalBridge&) = delete;
    EvalBridge& operator=(const EvalBridge&) = delete;
    EvalBridge(EvalBridge&&) = delete;
    EvalBridge& operator=(EvalBridge&&) = delete;
    ~EvalBridge() = default;

    // First difference between the mirror and the library, empty when they agree. The load-time check runs in
    // the constructor; the first graph adds its own.
    std::string layout_problem() const;
    bool first_graph_checked() const { return graph_checked_.load(std::memory_order_acquire); }

    void request_abort() { abort_.store(true, std::memory_order_release); }
    void clear_abort() { abort_.store(false, std::memory_order_release); }
    bool abort_requested() const { return abort_.load(std::memory_order_acquire); }

    // Throws std::invalid_argument when the plan contradicts itself, std::logic_error when one is armed.
    void arm(Plan plan);
    Report disarm();

    // `ggml_backend_sched_eval_callback` and `ggml_abort_callback`; the user data is the bridge.
    static bool on_node(Tensor* tensor, bool ask, void* user_data) noexcept;
    static bool on_abort(void* user_data) noexcept;

  private:
    enum class Mode : std::uint8_t { idle, check, plan };

    bool visit(Tensor& tensor, bool ask);
    void check_graph(const Tensor& tensor);
    void count_graph(const Tensor& tensor);
    void visit_sources(const Tensor& tensor);
    void visit_input(Tensor& input);
    void patch_positions(Tensor& input);
    void read_destinations(Tensor& input);
    void read_value_destinations(Tensor& input);
    void visit_mask(Tensor& input);
    template <typename Element>
    void patch_mask(Tensor& input);
    template <typename Element>
    void hide_ranges(Element* rows, std::int64_t row_length);
    template <typename Element>
    void hide_what_follows(Element* rows, std::int64_t row_length);
    void redirect_rows();
    void check_scale(const Tensor& input);
    template <typename Element>
    std::vector<std::int64_t> visible_cells(const Tensor& input) const;
    void capture(const Tensor& tensor, std::size_t layer_index);
    std::optional<std::size_t> captured_layer(const Tensor& tensor) const;
    bool writable(const Tensor& input, ElementType type, std::int64_t elements);
    void fail(std::string problem);
    bool inputs_done() const;

    Library library_;
    std::atomic<bool> abort_{false};
    std::atomic<Mode> mode_{Mode::idle};
    std::atomic<bool> graph_checked_{false};
    mutable std::mutex problem_mutex_;  // read from other threads while a graph runs; never on the fast path
    std::string layout_problem_;
    const Tensor* check_first_node_ = nullptr;

    Plan plan_;
    Report report_;
    const Tensor* first_node_ = nullptr;
    bool positions_done_ = false;
    bool destinations_done_ = false;
    bool mask_done_ = false;
    bool redirected_ = false;
    Tensor* key_destinations_ = nullptr;
    Tensor* value_destinations_ = nullptr;
};

}  // namespace nexus::bridge

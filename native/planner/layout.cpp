#include "layout.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "cursor.hpp"

namespace tensile::planner {
namespace {

// How often it is decided which host copies are valid at the start of the iteration. After that, none counts as
// valid.
constexpr int home_attempts = 3;
constexpr int iterations = 3;        // two to fill the lanes, one to measure
constexpr int held_iterations = 24;  // of moves as they are: as many as the simulator allows (simulate.py)
constexpr Ns forever = std::numeric_limits<Ns>::max() / 4;

Index gap_of(const Move& move) { return move.gap; }
Index gap_of(Index gap) { return gap; }

}  // namespace

bool Layout::lay(const Choices& choices, int passes, const Layout& like) {
  if (!arrange(choices, like)) return false;
  gather(choices);
  if (choices.room_bytes && !make_room(*choices.room_bytes)) return false;
  sort_departures();
  sort_returns();
  bench_->late_out_ns.assign(at(length()), 0);
  bench_->late_in_ns.assign(at(length()), 0);
  for (int pass = 0; pass < passes; ++pass) {
    lay_axis();
    plan_copies(choices);
    simulate(iterations);
    if (stall_ns == 0) break;
  }
  weigh();
  return true;
}

bool Layout::hold(const std::vector<Move>& others) {
  for (std::size_t k = 0; k < others.size(); ++k) {
    const Move& move = others[k];
    if (k > 0 && others[k - 1].gap == move.gap && others[k - 1].need > move.after) return false;
    const std::span<const GapPart> parts = order_->parts(at(move.gap));
    if (std::none_of(parts.begin(), parts.end(),
                     [&](const GapPart& part) { return part.after == move.after && part.need == move.need; }))
      return false;
  }
  moves = others;
  bench_->late_out_ns.assign(at(length()), 0);
  bench_->late_in_ns.assign(at(length()), 0);
  simulate(held_iterations);
  weigh();
  return true;
}

Bytes Layout::peak_bytes() const { return *std::max_element(load_bytes.begin(), load_bytes.end()); }

Index Layout::peak_position() const {
  return static_cast<Index>(std::max_element(load_bytes.begin(), load_bytes.end()) - load_bytes.begin());
}

Bytes Layout::excess(Bytes limit_bytes) const {
  return std::accumulate(load_bytes.begin(), load_bytes.end(), Bytes{0},
                         [&](Bytes sum, Bytes load) { return sum + std::max<Bytes>(0, load - limit_bytes); });
}

// --- the order and the moves -------------------------------------------------------------------------------------

bool Layout::arrange(const Choices& choices, const Layout& like) {
  if (like.order_ != nullptr && like.order_->was_arranged_for(choices)) {
    order_ = like.order_;
    return true;
  }
  if (order_ == nullptr || order_.use_count() > 1) order_ = std::make_shared<Order>();
  return order_->arrange(*step_, choices);
}

void Layout::gather(const Choices& choices) {
  const auto& choice = choices.choice;
  moves.clear();
  constexpr std::size_t word = sizeof(std::uint64_t);
  for (std::size_t gap = 0; gap < choice.size(); ++gap) {
    if (gap % word == 0 && gap + word <= choice.size()) {  // most tensors are kept: skip eight at a time
      std::uint64_t eight = 0;
      std::memcpy(&eight, choice.data() + gap, word);
      if (eight == 0) {
        gap += word - 1;
        continue;
      }
    }
    if (choice[gap] != Choice::swap) continue;
    const bool all = choices.room_bytes.has_value();
    for (const GapPart& part : all ? order_->parts(gap) : used(gap, choices.cover[gap]))
      moves.push_back({part.gap, step_->gaps[gap].tensor, part.after, part.need, 0, 0, part.version, part.instance,
                       true, 0, 0, 0, part.need});
  }
}

// Return the parts of a gap in which its tensor is away: the longest part, those in which the tensor has to be away,
// and all parts between them.
std::span<const GapPart> Layout::used(std::size_t gap, const Cover& cover) const {
  const std::span<const GapPart> parts = order_->parts(gap);
  if (parts.size() < 2) return parts;
  auto first =
      static_cast<std::size_t>(std::max_element(parts.begin(), parts.end(), shorter<GapPart>) - parts.begin());
  std::size_t last = first;
  const Reach reach = reached(cover);
  for (std::size_t k = 0; k < parts.size(); ++k) {
    if (cover.lo == none || parts[k].need <= reach.lo || parts[k].after >= reach.hi) continue;
    first = std::min(first, k);
    last = std::max(last, k);
  }
  return parts.subspan(first, last - first + 1);
}

// Return the positions at which a tensor has to be away.
Layout::Reach Layout::reached(const Cover& cover) const {
  if (cover.lo == none) return {none, none};
  const Index ops = step_->operators();
  const auto unrolled = [&](const std::vector<Index>& where, Index op) {
    return op < ops ? where[at(op)] : where[at(op - ops)] + length();
  };
  return {unrolled(order_->block, cover.lo), unrolled(order_->position, cover.hi)};
}

std::span<const Move> Layout::moves_of(Index gap) const {
  const auto [begin, end] = std::equal_range(moves.begin(), moves.end(), gap,
                                             [](const auto& a, const auto& b) { return gap_of(a) < gap_of(b); });
  return {begin, end};
}

bool Layout::away(Index gap, Index position) const {
  const std::span<const Move> mine = moves_of(gap);
  return std::any_of(mine.begin(), mine.end(),
                     [&](const Move& move) { return position >= move.free && position < move.back; });
}

// Sort by the position at which the tensor leaves, then by gap.
void Layout::sort_departures() {
  std::vector<Index>& count = bench_->count;
  count.assign(at(length()) + 1, 0);
  for (const Move& move : moves) ++count[at(move.after) + 1];
  std::partial_sum(count.begin(), count.end(), count.begin());
  departures.resize(moves.size());
  for (std::size_t k = 0; k < moves.size(); ++k) departures[at(count[at(moves[k].after)]++)] = static_cast<Index>(k);
}

// Sort all copies to the device by the position that needs them, the last first. An upload sorts with the operator
// after it, because the upload is due at its own end.
void Layout::sort_returns() {
  std::vector<Index>& count = bench_->count;
  const Index last = length();
  count.assign(at(last) + 2, 0);
  const auto place = [&](Index due) { return at(count[at(last - due)]++); };
  for (const Move& move : moves) ++count[at(last - within(move.need)) + 1];
  for (const Index pos : order_->uploads) ++count[at(last - pos - 1) + 1];
  std::partial_sum(count.begin(), count.end(), count.begin());
  bench_->backs.resize(moves.size() + order_->uploads.size());
  for (std::size_t k = moves.size(); k-- > 0;) {  // among the tensors of one operator, the largest id comes first
    const Index tensor = moves[k].tensor;
    const Index where = within(moves[k].need);
    bench_->backs[place(where)] = {0, step_->arrays.in_ns[at(tensor)], tensor, static_cast<Index>(k), where};
  }
  for (const Index pos : order_->uploads)
    bench_->backs[place(pos + 1)] = {0, step_->arrays.latency_ns[at(order_->op_at[at(pos)])], none, none, pos};
}

// --- when memory is given back and taken again -------------------------------------------------------------------

void Layout::lay_axis() {
  const Index count = length();
  boundary_ns.resize(at(count));
  begin_ns.resize(at(count));
  end_ns.resize(at(count));
  const std::vector<Ns>& before = order_->before_ns;
  Ns waited = 0;
  for (Index pos = 0; pos < count; ++pos) {
    waited += bench_->late_out_ns[at(pos)];
    boundary_ns[at(pos)] = before[at(pos)] + waited;
    waited += bench_->late_in_ns[at(pos)];
    begin_ns[at(pos)] = before[at(pos)] + waited;
    end_ns[at(pos)] = before[at(pos) + 1] + waited;
  }
}

// Decide which swaps copy to the host, and where tensors leave and return. A host copy is valid until the tensor is
// written again. A trainer adopts a plan at the start of an iteration, with host copies only of the tensors that are
// away or leaving there (the home state). Which tensors these are depends on the boundaries, and the boundaries
// depend on the copies. So all copies are first assumed to be valid at the start, and the assumption is checked
// afterwards.
void Layout::plan_copies(const Choices& choices) {
  bench_->spoilt.assign(at(step_->tensors()), 0);
  for (int attempt = 0;; ++attempt) {
    if (attempt == home_attempts) std::fill(bench_->spoilt.begin(), bench_->spoilt.end(), 1);
    const bool other = decide_copies();
    if (attempt > 0 && !other) return;
    place_outs();
    place_backs();
    demand(choices);
    if (choices.room_bytes) fill();
    if (!spoil()) return;
  }
}

// Decide which moves copy to the host. Returns whether the decision changed for any move.
bool Layout::decide_copies() {
  bool other = false;
  for (std::size_t k = 0; k < moves.size();) {
    std::size_t stop = k;
    while (stop < moves.size() && moves[stop].tensor == moves[k].tensor && moves[stop].instance == moves[k].instance)
      ++stop;
    const Move& last = moves[stop - 1];
    bool valid = last.need >= length() && bench_->spoilt[at(last.tensor)] == 0;
    Index version = 0;
    for (; k < stop; ++k) {
      const bool copies = !(valid && moves[k].version == version);
      other |= copies != moves[k].copies;
      moves[k].copies = copies;
      if (!copies) continue;
      valid = true;
      version = moves[k].version;
    }
  }
  return other;
}

// Mark the tensors that are on the device when the iteration starts: no host copy of them is valid then. Returns
// whether any tensor was newly marked.
bool Layout::spoil() {
  bool spoilt_any = false;
  for (const Move& move : moves) {
    if (move.need < length() || move.back > length() || bench_->spoilt[at(move.tensor)] != 0) continue;
    bench_->spoilt[at(move.tensor)] = 1;
    spoilt_any = true;
  }
  return spoilt_any;
}

// Queue the copies to the host in the order in which tensors leave. A move without a copy gives its memory back after
// the last use. The first loop finds how far the previous iteration's copies reach into this one.
void Layout::place_outs() {
  const auto queue = [&](Move& move, Ns lane) {
    move.out_start_ns = std::max(lane, end_ns[at(move.after)]);
    return move.out_start_ns + step_->arrays.out_ns[at(move.tensor)];
  };
  Ns lane = -forever;
  for (const Index k : departures)
    if (moves[at(k)].copies) lane = queue(moves[at(k)], lane);
  lane -= end_ns.back();
  Cursor boundary(boundary_ns, end_ns.back());
  for (const Index k : departures) {
    Move& move = moves[at(k)];
    move.free = move.after + 1;
    if (move.copies) {
      lane = queue(move, lane);
      move.free = std::max(move.free, boundary.first_from(lane));
    }
    move.free = std::min(move.free, move.need - 1);
  }
}

// Queue the copies to the device from the last to the first, each as late as its due time and the copies after it
// allow.
void Layout::place_backs() {
  using Back = Workbench::Back;
  const Index count = length();
  const Ns period = end_ns.back();
  std::vector<Back>& backs = bench_->backs;
  for (Back& back : backs) back.due = back.move == none ? end_ns[at(back.where)] : begin_ns[at(back.where)];
  const auto earlier = [](const Back& a, const Back& b) {
    return a.due != b.due ? a.due > b.due : a.tensor != b.tensor ? a.tensor > b.tensor : a.move < b.move;
  };
  if (!std::is_sorted(backs.begin(), backs.end(), earlier)) std::sort(backs.begin(), backs.end(), earlier);
  Ns next = forever;
  const auto start_of = [&](const Back& back, Ns offset) {
    const Ns own = back.due + offset - back.duration;
    return back.move == none ? own : std::min(own, next - back.duration);
  };
  for (const Back& back : backs) next = std::min(next, start_of(back, period));
  Cursor boundary(boundary_ns, period);
  for (const Back& item : backs) {
    const Ns start = start_of(item, 0);
    next = std::min(next, start);
    if (item.move == none) continue;
    Move& move = moves[at(item.move)];
    const bool later = move.need >= count;  // the tensor is needed in the iteration after that in which it leaves
    move.in_start_ns = start + (later ? period : 0);
    const Index back = boundary.last_by(start) + (later ? count : 0);
    move.early = std::min(move.early, back);
    move.back = std::clamp(back, move.free + 1, move.need);
  }
}

// Let tensors leave earlier and return later, so that they are away where the choices demand it (`Cover`).
void Layout::demand(const Choices& choices) {
  for (Move& move : moves) {
    const Reach reach = reached(choices.cover[at(move.gap)]);
    if (reach.lo == none || move.need <= reach.lo || move.after >= reach.hi) continue;
    move.free = std::min(move.free, std::clamp(reach.lo, move.after + 1, move.need - 1));
    move.back = std::max(move.back, std::clamp(reach.hi + 1, move.free + 1, move.need));
  }
}

void Layout::weigh() {
  sum_up(load_bytes, [](const Move& move) { return std::pair(move.free, move.back); });
}

// --- time --------------------------------------------------------------------------------------------------------

void Layout::simulate(int most) {
  queue_events();
  bench_->out_done_ns.assign(moves.size(), 0);
  bench_->in_done_ns.assign(moves.size(), 0);
  bench_->backlog_ns.clear();
  std::fill(bench_->late_out_ns.begin(), bench_->late_out_ns.end(), 0);
  std::fill(bench_->late_in_ns.begin(), bench_->late_in_ns.end(), 0);
  out_free_ns_ = in_free_ns_ = 0;
  Ns now = 0;
  for (int iteration = 0; iteration < most; ++iteration) {
    const Ns start = now;
    now = run_iteration(start);
    iteration_ns = now - start;
    if (iteration + 1 < most && repeats(now)) return;
  }
}

// Queue events by position, then by kind, then by move, as linked lists. An event is pushed to the front of its list,
// so the events are queued in reverse order.
void Layout::queue_events() {
  bench_->first.assign(at(length()), none);
  bench_->next.resize(std::max(moves.size(), order_->uploads.size()) * kinds);
  bench_->busy.assign(at(length()) / 64 + 1, 0);
  const auto count = static_cast<Index>(moves.size());
  for (auto k = static_cast<Index>(order_->uploads.size()); k-- > 0;) queue_event(order_->uploads[at(k)], upload, k);
  for (Index k = count; k-- > 0;) queue_event(within(moves[at(k)].need), need, k);
  for (Index k = count; k-- > 0;) queue_event(within(moves[at(k)].back), in, k);
  for (Index k = count; k-- > 0;)
    if (moves[at(k)].copies) queue_event(within(moves[at(k)].free), free, k);
  for (Index k = count; k-- > 0;)
    if (moves[at(k)].copies) queue_event(within(moves[at(k)].after + 1), out, k);
}

void Layout::queue_event(Index position, Kind kind, Index move) {
  const Index event = move * kinds + kind;
  bench_->next[at(event)] = bench_->first[at(position)];
  bench_->first[at(position)] = event;
  bench_->busy[at(position) / 64] |= std::uint64_t{1} << (at(position) % 64);
}

// Simulate one iteration and return the start of the next. Between events there is only computation.
Ns Layout::run_iteration(Ns now) {
  Workbench& bench = *bench_;
  const std::vector<Ns>& before = order_->before_ns;
  const StepArrays& arrays = step_->arrays;
  Ns computed = 0;
  stall_ns = 0;
  for (std::size_t word = 0; word < bench.busy.size(); ++word) {
    for (std::uint64_t left = bench.busy[word]; left != 0; left &= left - 1) {
      const std::size_t pos = word * 64 + static_cast<std::size_t>(std::countr_zero(left));
      now += before[pos] - computed;
      computed = before[pos];
      const Ns came = now;
      Ns freed = now;
      for (Index event = bench.first[pos]; event != none; event = bench.next[at(event)]) {
        const std::size_t k = at(event) / kinds;
        switch (event % kinds) {
          case out:
            bench.out_done_ns[k] = out_free_ns_ = std::max(now, out_free_ns_) + arrays.out_ns[at(moves[k].tensor)];
            break;
          case free:
            freed = now = std::max(now, bench.out_done_ns[k]);
            break;
          case in:
            bench.in_done_ns[k] = in_free_ns_ = std::max(now, in_free_ns_) + arrays.in_ns[at(moves[k].tensor)];
            break;
          case need:
            now = std::max(now, bench.in_done_ns[k]);
            break;
          default:
            now = std::max(now, in_free_ns_);
            in_free_ns_ = now + arrays.latency_ns[at(order_->op_at[pos])];
        }
      }
      bench.late_out_ns[pos] = freed - came;
      bench.late_in_ns[pos] = now - freed;
      stall_ns += now - came;
    }
  }
  return now + before.back() - computed;
}

// Return whether the state of the lanes equals the state at the start of the iteration, so that the next iteration
// will be the same. The state consists of the unfinished copies of moves that cross the iteration's end.
bool Layout::repeats(Ns now) {
  std::vector<Ns>& was = bench_->backlog_ns;
  const bool first = was.empty();
  bool same = true;
  std::size_t number = 0;
  const auto look = [&](Ns done) {
    const Ns left = std::max<Ns>(0, done - now);
    if (first) was.push_back(0);
    same &= was[number] == left;
    was[number++] = left;
  };
  look(out_free_ns_);
  look(in_free_ns_);
  for (std::size_t k = 0; k < moves.size(); ++k) {
    if (moves[k].need < length()) continue;
    look(bench_->out_done_ns[k]);
    look(bench_->in_done_ns[k]);
  }
  return same;
}

}  // namespace tensile::planner

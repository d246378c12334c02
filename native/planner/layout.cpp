#include "layout.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

namespace tensile::planner {
namespace {

constexpr int home_attempts = 3;
constexpr int iterations = 3;  // two to fill the lanes, one to measure
constexpr Ns forever = std::numeric_limits<Ns>::max() / 4;

Ns floor_div(Ns a, Ns b) { return a / b - (a % b != 0 && (a % b < 0) != (b < 0) ? 1 : 0); }

// Finds boundaries of a periodic axis for times that only rise, or only fall: from the last one found on, in steps
// that double, since the next one is near.
class Cursor {
 public:
  Cursor(const std::vector<Ns>& boundary_ns, Ns period) : at_(boundary_ns), period_(period) {}

  // The first boundary at this time or later, counted on over the iterations; times must rise.
  Index first_from(Ns time) {
    const Ns rest = turn_to(time, 0);
    std::size_t low = found_;  // all before it are too early
    std::size_t step = 1;
    while (low + step <= at_.size() && at_[low + step - 1] < rest) {
      low += step;
      step *= 2;
    }
    const auto end = at_.begin() + static_cast<std::ptrdiff_t>(std::min(low + step - 1, at_.size()));
    found_ = static_cast<std::size_t>(std::lower_bound(at_.begin() + static_cast<std::ptrdiff_t>(low), end, rest) -
                                      at_.begin());
    return whole();
  }

  // The last boundary at this time or earlier; times must fall.
  Index last_by(Ns time) {
    const Ns rest = turn_to(time, at_.size());
    std::size_t high = found_;  // all from it on are too late
    std::size_t step = 1;
    while (high >= step && at_[high - step] > rest) {
      high -= step;
      step *= 2;
    }
    const auto begin = at_.begin() + static_cast<std::ptrdiff_t>(high >= step ? high - step + 1 : 0);
    found_ = static_cast<std::size_t>(std::upper_bound(begin, at_.begin() + static_cast<std::ptrdiff_t>(high), rest) -
                                      at_.begin());
    return whole() - 1;
  }

 private:
  // Into the iteration in which the time lies; where that is another one, the search starts over.
  Ns turn_to(Ns time, std::size_t start) {
    Ns rest = time - turn_ * period_;
    if (!begun_ || rest < 0 || rest >= period_) {
      turn_ = floor_div(time, period_);
      rest = time - turn_ * period_;
      found_ = start;
      begun_ = true;
    }
    return rest;
  }

  Index whole() const {
    return static_cast<Index>(turn_) * static_cast<Index>(at_.size()) + static_cast<Index>(found_);
  }

  const std::vector<Ns>& at_;
  Ns period_;
  Ns turn_ = 0;
  std::size_t found_ = 0;
  bool begun_ = false;
};

}  // namespace

bool Layout::lay(const Choices& choices, int passes, const Layout& like) {
  if (!arrange(choices, like)) return false;
  gather(choices);
  sort_departures();
  sort_returns();
  bench_->late_out_ns.assign(at(length()), 0);
  bench_->late_in_ns.assign(at(length()), 0);
  for (int pass = 0; pass < passes; ++pass) {
    lay_axis();
    plan_copies();
    demand(choices);
    simulate();
    if (stall_ns == 0) break;
  }
  weigh();
  return true;
}

bool Layout::hold(const std::vector<Move>& given) {
  const bool alike = std::equal(
      moves.begin(), moves.end(), given.begin(), given.end(),
      [](const Move& a, const Move& b) { return a.gap == b.gap && a.after == b.after && a.need == b.need; });
  if (!alike) return false;
  for (std::size_t k = 0; k < moves.size(); ++k) {
    moves[k].free = given[k].free;
    moves[k].back = given[k].back;
    moves[k].copies = given[k].copies;
  }
  simulate();
  weigh();
  return true;
}

Bytes Layout::peak_bytes() const { return *std::max_element(load_bytes.begin(), load_bytes.end()); }

Index Layout::peak_position() const {
  return static_cast<Index>(std::max_element(load_bytes.begin(), load_bytes.end()) - load_bytes.begin());
}

Bytes Layout::excess(Bytes limit_bytes) const {
  return std::accumulate(load_bytes.begin(), load_bytes.end(), Bytes{0},
                         [&](Bytes sum, Bytes one) { return sum + std::max<Bytes>(0, one - limit_bytes); });
}

// --- what is moved -----------------------------------------------------------------------------------------------

bool Layout::arrange(const Choices& choices, const Layout& like) {
  if (like.order_ != nullptr && like.order_->follows(choices)) {
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
    if (gap % word == 0 && gap + word <= choice.size()) {  // most are kept: eight at once are soon seen through
      std::uint64_t eight = 0;
      std::memcpy(&eight, choice.data() + gap, word);
      if (eight == 0) {
        gap += word - 1;
        continue;
      }
    }
    const Stretch& part = order_->stretch[gap];
    if (choice[gap] != Choice::swap || part.after == none) continue;
    moves.push_back({static_cast<Index>(gap), step_->gaps[gap].tensor, part.after, part.need, 0, 0, part.version,
                     part.instance, true});
  }
}

// By where they leave, then by gap.
void Layout::sort_departures() {
  std::vector<Index>& count = bench_->count;
  count.assign(at(length()) + 1, 0);
  for (const Move& one : moves) ++count[at(one.after) + 1];
  std::partial_sum(count.begin(), count.end(), count.begin());
  departures.resize(moves.size());
  for (std::size_t k = 0; k < moves.size(); ++k) departures[at(count[at(moves[k].after)]++)] = static_cast<Index>(k);
}

// What uses the lane to the device, by where it is needed, the last first. An upload stands beside the operator after
// it: it is due when it ends.
void Layout::sort_returns() {
  std::vector<Index>& count = bench_->count;
  const Index last = length();
  count.assign(at(last) + 2, 0);
  const auto place = [&](Index due) { return at(count[at(last - due)]++); };
  for (const Move& one : moves) ++count[at(last - within(one.need)) + 1];
  for (const Index pos : order_->uploads) ++count[at(last - pos - 1) + 1];
  std::partial_sum(count.begin(), count.end(), count.begin());
  bench_->backs.resize(moves.size() + order_->uploads.size());
  for (std::size_t k = moves.size(); k-- > 0;) {  // one operator's tensors: the largest id first
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

// A host copy serves until the tensor is written again. Whether one is valid at the iteration's start depends on
// whether the tensor is away or leaving then, which depends on the boundaries: assumed first, then checked.
void Layout::plan_copies() {
  bench_->spoilt.assign(at(step_->tensors()), 0);
  for (int attempt = 0; attempt < home_attempts; ++attempt) {
    const bool other = decide_copies();
    if (attempt > 0 && !other) return;
    place_outs();
    place_backs();
    if (!spoil()) return;
  }
}

// Whether a copy is made that was not, or the other way round.
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

// Whether there is a tensor more that is on the device when the iteration starts, so that no host copy lasts till
// then.
bool Layout::spoil() {
  bool found = false;
  for (const Move& one : moves) {
    if (one.need < length() || one.back > length() || bench_->spoilt[at(one.tensor)] != 0) continue;
    bench_->spoilt[at(one.tensor)] = 1;
    found = true;
  }
  return found;
}

void Layout::place_outs() {
  const auto queue = [&](Move& one, Ns lane) {
    one.out_start_ns = std::max(lane, end_ns[at(one.after)]);
    return one.out_start_ns + step_->arrays.out_ns[at(one.tensor)];
  };
  Ns lane = -forever;
  for (const Index k : departures)
    if (moves[at(k)].copies) lane = queue(moves[at(k)], lane);
  lane -= end_ns.back();
  Cursor boundary(boundary_ns, end_ns.back());
  for (const Index k : departures) {
    Move& one = moves[at(k)];
    one.free = one.after + 1;
    if (one.copies) {
      lane = queue(one, lane);
      one.free = std::max(one.free, boundary.first_from(lane));
    }
    one.free = std::min(one.free, one.need - 1);
  }
}

void Layout::place_backs() {
  using Back = Workbench::Back;
  const Index count = length();
  const Ns period = end_ns.back();
  std::vector<Back>& backs = bench_->backs;
  for (Back& one : backs) one.due = one.move == none ? end_ns[at(one.where)] : begin_ns[at(one.where)];
  const auto earlier = [](const Back& a, const Back& b) {
    return a.due != b.due ? a.due > b.due : a.tensor != b.tensor ? a.tensor > b.tensor : a.move < b.move;
  };
  if (!std::is_sorted(backs.begin(), backs.end(), earlier)) std::sort(backs.begin(), backs.end(), earlier);
  Ns next = forever;
  const auto start_of = [&](const Back& one, Ns offset) {
    const Ns own = one.due + offset - one.duration;
    return one.move == none ? own : std::min(own, next - one.duration);
  };
  for (const Back& one : backs) next = std::min(next, start_of(one, period));
  Cursor boundary(boundary_ns, period);
  for (const Back& item : backs) {
    const Ns start = start_of(item, 0);
    next = std::min(next, start);
    if (item.move == none) continue;
    Move& one = moves[at(item.move)];
    const bool later = one.need >= count;  // in the iteration after the one in which it leaves
    one.in_start_ns = start + (later ? period : 0);
    one.back = std::clamp(boundary.last_by(start) + (later ? count : 0), one.free + 1, one.need);
  }
}

void Layout::demand(const Choices& choices) {
  const Index ops = step_->operators();
  const Index count = length();
  const auto unrolled = [&](const std::vector<Index>& where, Index op) {
    return op < ops ? where[at(op)] : where[at(op - ops)] + count;
  };
  for (Move& one : moves) {
    const Cover& cover = choices.cover[at(one.gap)];
    if (cover.lo == none) continue;
    const Index lo = unrolled(order_->block, cover.lo);
    const Index hi = unrolled(order_->position, cover.hi);
    one.free = std::min(one.free, std::clamp(lo, one.after + 1, one.need - 1));
    one.back = std::max(one.back, std::clamp(hi + 1, one.free + 1, one.need));
  }
}

void Layout::weigh() {
  const Index count = length();
  std::vector<Bytes>& change = bench_->change;
  change.assign(at(count) + 1, 0);
  for (const Move& one : moves) {
    const Bytes size = step_->arrays.size_bytes[at(one.tensor)];
    const Index first = within(one.free);
    const Index stop = first + (one.back - one.free);
    change[at(first)] -= size;
    change[at(std::min(stop, count))] += size;
    if (stop > count) {
      change[0] -= size;
      change[at(stop - count)] += size;
    }
  }
  load_bytes.resize(at(count));
  Bytes away = 0;
  for (Index pos = 0; pos < count; ++pos) {
    away += change[at(pos)];
    load_bytes[at(pos)] = order_->held_bytes[at(pos)] + away;
  }
}

// --- time --------------------------------------------------------------------------------------------------------

void Layout::simulate() {
  queue_events();
  bench_->out_done_ns.assign(moves.size(), 0);
  bench_->in_done_ns.assign(moves.size(), 0);
  bench_->backlog_ns.clear();
  std::fill(bench_->late_out_ns.begin(), bench_->late_out_ns.end(), 0);
  std::fill(bench_->late_in_ns.begin(), bench_->late_in_ns.end(), 0);
  out_free_ns_ = in_free_ns_ = 0;
  Ns now = 0;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    const Ns start = now;
    now = run_iteration(start);
    iteration_ns = now - start;
    if (iteration + 1 < iterations && repeats(now)) return;
  }
}

// Events by position, then by kind, then by move, as chains: pushed to the front, the last one first.
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

// From the start of one iteration to that of the next. Nothing but computing happens between events.
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

// Whether the lanes look as they did when the iteration started, so that the next one will be like it. All that is
// left of the past are copies that are not done, of moves that cross the end.
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

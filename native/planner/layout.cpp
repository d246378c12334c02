#include "layout.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

namespace tensile::planner {
namespace {

constexpr int deepest_chain = 48;
constexpr int home_attempts = 3;
constexpr int iterations = 3;  // two to fill the lanes, one to measure
constexpr Ns forever = std::numeric_limits<Ns>::max() / 4;

Ns floor_div(Ns a, Ns b) { return a / b - (a % b != 0 && (a % b < 0) != (b < 0) ? 1 : 0); }

}  // namespace

bool Layout::lay(const Choices& choices) {
  if (!order(choices)) return false;
  walk(choices);
  const auto count = op_at.size();
  late_out_.assign(count, 0);
  late_in_.assign(count, 0);
  return true;
}

void Layout::time(const Choices& choices, int passes) {
  for (int pass = 0; pass < passes; ++pass) {
    lay_axis(late_out_, late_in_);
    plan_copies();
    demand(choices);
    weigh();
    simulate();
    if (stall_ns == 0) return;
  }
}

Bytes Layout::peak_bytes() const { return *std::max_element(load_bytes.begin(), load_bytes.end()); }

Index Layout::peak_position() const {
  return static_cast<Index>(std::max_element(load_bytes.begin(), load_bytes.end()) - load_bytes.begin());
}

Index Layout::operator_at(Index where) const {
  const auto next = std::lower_bound(position.begin(), position.end(), where);
  return static_cast<Index>(next - position.begin());
}

Bytes Layout::excess(Bytes limit_bytes) const {
  return std::accumulate(load_bytes.begin(), load_bytes.end(), Bytes{0}, [&](Bytes sum, Bytes one) {
    return sum + std::max<Bytes>(0, one - limit_bytes);
  });
}

// --- the order of execution --------------------------------------------------------------------------------------

bool Layout::order(const Choices& choices) {
  const Step& step = *step_;
  op_at.clear();
  again.clear();
  block.assign(at(step.operators()), 0);
  position.assign(at(step.operators()), 0);
  dropped_.assign(at(step.tensors()), 0);
  made_for_.assign(at(step.tensors()), none);
  for (Index op = 0; op < step.operators(); ++op) {
    block[at(op)] = length();
    for (Index number = step.first_access(op); number < step.last_access(op); ++number) {
      const Index tensor = step.access(number).tensor;
      if (dropped_[at(tensor)] != 0 && !make_again(tensor, op, 0)) return false;
    }
    position[at(op)] = length();
    op_at.push_back(op);
    again.push_back(0);
    for (Index number = step.first_access(op); number < step.last_access(op); ++number) {
      const Index gap = step.gap_of_access[at(number)];
      if (gap != none && choices.choice[at(gap)] == Choice::drop) dropped_[at(step.access(number).tensor)] = 1;
    }
  }
  return true;
}

bool Layout::make_again(Index tensor, Index op, int depth) {
  const Step& step = *step_;
  const Index maker = step.first_writer[at(tensor)];
  if (maker == none || step.arrays.repeatable[at(maker)] == 0 || depth > deepest_chain) return false;
  if (step.writers[at(tensor)].size() != 1) return false;
  for (Index number = step.first_access(maker); number < step.last_access(maker); ++number) {
    const Access& source = step.access(number);
    if (source.writes) continue;
    if (step.written_between(source.tensor, maker, op)) return false;
    if (step.persistent(source.tensor) || made_for_[at(source.tensor)] == op) continue;
    const bool there = dropped_[at(source.tensor)] == 0 && step.last_user[at(source.tensor)] >= op;
    if (!there && !make_again(source.tensor, op, depth + 1)) return false;
  }
  op_at.push_back(maker);
  again.push_back(1);
  for (Index number = step.first_access(maker); number < step.last_access(maker); ++number) {
    if (!step.access(number).writes) continue;
    made_for_[at(step.access(number).tensor)] = op;
    dropped_[at(step.access(number).tensor)] = 0;
  }
  return true;
}

void Layout::walk(const Choices& choices) {
  const Step& step = *step_;
  const Index count = length();
  struct Held {
    Index life = none;
    Index gap = none;      // the gap that is open, by captured accesses
    Index written = 0;     // times written in this iteration
    Index latest = none;   // position of the latest access
    Index earliest = none;
  };
  std::vector<Held> held(at(step.tensors()));
  std::vector<Index> move_of(step.gaps.size(), none);
  lives_.clear();
  moves.clear();
  const auto record = [&](const Held& one, Index tensor, Index need) {
    if (one.gap == none || choices.choice[at(one.gap)] != Choice::swap || need - one.latest <= 1) return;
    const Move found{one.gap, tensor, one.latest, need, 0, 0, one.written, one.life, true, 0, 0};
    Index& known = move_of[at(one.gap)];
    if (known == none) {
      known = static_cast<Index>(moves.size());
      moves.push_back(found);
    } else if (need - one.latest > moves[at(known)].need - moves[at(known)].after) {
      moves[at(known)] = found;  // read in between to make something again: the longest part is swapped
    }
  };
  for (Index pos = 0; pos < count; ++pos) {
    const Index op = op_at[at(pos)];
    for (Index number = step.first_access(op); number < step.last_access(op); ++number) {
      const Access& one = step.access(number);
      Held& here = held[at(one.tensor)];
      if (one.writes && step.fresh(op, one.tensor)) {
        here.life = static_cast<Index>(lives_.size());
        here.written = 0;
        lives_.push_back({one.tensor, pos, pos});
      } else {
        if (here.latest != none) record(here, one.tensor, pos);
        if (here.life != none) lives_[at(here.life)].last = pos;
      }
      if (here.earliest == none) here.earliest = pos;
      here.latest = pos;
      here.written += one.writes ? 1 : 0;
      if (again[at(pos)] == 0) here.gap = step.gap_of_access[at(number)];
    }
  }
  for (Index tensor = 0; tensor < step.tensors(); ++tensor) {
    const Held& here = held[at(tensor)];
    if (step.persistent(tensor) && here.latest != none) record(here, tensor, here.earliest + count);
  }
  std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
    return std::tie(a.tensor, a.instance, a.after) < std::tie(b.tensor, b.instance, b.after);
  });
}

// --- when memory is given back and taken again -------------------------------------------------------------------

void Layout::lay_axis(const std::vector<Ns>& late_out, const std::vector<Ns>& late_in) {
  const Index count = length();
  boundary_ns.resize(at(count));
  begin_ns.resize(at(count));
  end_ns.resize(at(count));
  Ns now = 0;
  for (Index pos = 0; pos < count; ++pos) {
    now += late_out[at(pos)];
    boundary_ns[at(pos)] = now;
    now += late_in[at(pos)];
    begin_ns[at(pos)] = now;
    now += step_->arrays.latency_ns[at(op_at[at(pos)])];
    end_ns[at(pos)] = now;
  }
}

Index Layout::first_boundary_from(Ns time) const {
  const Ns period = end_ns.back();
  const Ns turn = floor_div(time, period);
  const auto found = std::lower_bound(boundary_ns.begin(), boundary_ns.end(), time - turn * period);
  return static_cast<Index>(turn) * length() + static_cast<Index>(found - boundary_ns.begin());
}

Index Layout::last_boundary_by(Ns time) const {
  const Ns period = end_ns.back();
  const Ns turn = floor_div(time, period);
  const auto found = std::upper_bound(boundary_ns.begin(), boundary_ns.end(), time - turn * period);
  return static_cast<Index>(turn) * length() + static_cast<Index>(found - boundary_ns.begin()) - 1;
}

// A host copy serves until the tensor is written again. Whether one is valid at the iteration's start depends on
// whether the tensor is away or leaving then, which depends on the boundaries: assumed first, then checked.
void Layout::plan_copies() {
  const Index count = length();
  std::vector<std::uint8_t> spoilt(at(step_->tensors()), 0);
  for (int attempt = 0; attempt < home_attempts; ++attempt) {
    for (std::size_t k = 0; k < moves.size();) {
      std::size_t stop = k;
      while (stop < moves.size() && moves[stop].tensor == moves[k].tensor && moves[stop].instance == moves[k].instance)
        ++stop;
      const Move& last = moves[stop - 1];
      bool valid = last.need >= count && spoilt[at(last.tensor)] == 0;
      Index version = 0;
      for (; k < stop; ++k) {
        moves[k].copies = !(valid && moves[k].version == version);
        if (!moves[k].copies) continue;
        valid = true;
        version = moves[k].version;
      }
    }
    place_outs();
    place_backs();
    bool again_needed = false;
    for (const Move& one : moves) {
      if (one.need < count || one.back > count || spoilt[at(one.tensor)] != 0) continue;
      spoilt[at(one.tensor)] = 1;
      again_needed = true;
    }
    if (!again_needed) return;
  }
}

void Layout::place_outs() {
  std::vector<Move*> outs;
  for (Move& one : moves) {
    one.free = one.after + 1;
    if (one.copies) outs.push_back(&one);
  }
  std::stable_sort(outs.begin(), outs.end(), [](const Move* a, const Move* b) { return a->after < b->after; });
  Ns lane = -forever;
  for (int round = 0; round < 2; ++round) {
    for (Move* one : outs) {
      one->out_start_ns = std::max(lane, end_ns[at(one->after)]);
      lane = one->out_start_ns + step_->arrays.out_ns[at(one->tensor)];
      one->free = std::max(one->after + 1, first_boundary_from(lane));
    }
    lane -= end_ns.back();
  }
  for (Move& one : moves) one.free = std::min(one.free, one.need - 1);
}

void Layout::place_backs() {
  struct Item {
    Ns due;
    Ns duration;
    Index tensor;
    Move* move;
  };
  const Index count = length();
  const Ns period = end_ns.back();
  std::vector<Item> items;
  for (Move& one : moves) {
    items.push_back({begin_ns[at(one.need % count)], step_->arrays.in_ns[at(one.tensor)], one.tensor, &one});
  }
  for (Index pos = 0; pos < count; ++pos) {
    const Index op = op_at[at(pos)];
    if (step_->arrays.upload[at(op)] != 0)
      items.push_back({end_ns[at(pos)], step_->arrays.latency_ns[at(op)], none, nullptr});
  }
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::tie(a.due, a.tensor) > std::tie(b.due, b.tensor);
  });
  Ns next = forever;
  for (const Ns offset : {period, Ns{0}}) {
    for (const Item& item : items) {
      const Ns own = item.due + offset - item.duration;
      const Ns start = item.move == nullptr ? own : std::min(own, next - item.duration);
      next = std::min(next, start);
      if (item.move == nullptr || offset != 0) continue;
      Move& one = *item.move;
      one.in_start_ns = start + one.need / count * period;
      const Index back = last_boundary_by(one.in_start_ns);
      one.back = std::clamp(back, one.free + 1, one.need);
    }
  }
}

void Layout::demand(const Choices& choices) {
  const Index ops = step_->operators();
  const Index count = length();
  for (Move& one : moves) {
    const Cover& cover = choices.cover[at(one.gap)];
    if (cover.lo == none) continue;
    const Index lo = block[at(cover.lo % ops)] + cover.lo / ops * count;
    const Index hi = position[at(cover.hi % ops)] + cover.hi / ops * count;
    one.free = std::min(one.free, std::clamp(lo, one.after + 1, one.need - 1));
    one.back = std::max(one.back, std::clamp(hi + 1, one.free + 1, one.need));
  }
}

void Layout::weigh() {
  const Index count = length();
  std::vector<Bytes> change(at(count) + 1, 0);
  for (const Life& one : lives_) {
    const Bytes size = step_->arrays.size_bytes[at(one.tensor)];
    change[at(one.first)] += size;
    change[at(one.last) + 1] -= size;
  }
  for (const Move& one : moves) {
    const Bytes size = step_->arrays.size_bytes[at(one.tensor)];
    const Index first = one.free % count;
    const Index stop = first + (one.back - one.free);
    change[at(first)] -= size;
    change[at(std::min(stop, count))] += size;
    if (stop > count) {
      change[0] -= size;
      change[at(stop - count)] += size;
    }
  }
  load_bytes.resize(at(count));
  Bytes held = step_->base_bytes;
  for (Index pos = 0; pos < count; ++pos) {
    held += change[at(pos)];
    load_bytes[at(pos)] = held + step_->arrays.workspace_bytes[at(op_at[at(pos)])];
  }
}

// --- time --------------------------------------------------------------------------------------------------------

void Layout::simulate() {
  enum Kind : std::uint8_t { out, free, in, need };
  struct Event {
    Index pos;
    Kind kind;
    Index move;
  };
  const Index count = length();
  std::vector<Event> events;
  events.reserve(moves.size() * 4);
  for (Index k = 0; k < static_cast<Index>(moves.size()); ++k) {
    const Move& one = moves[at(k)];
    if (one.copies) {
      events.push_back({(one.after + 1) % count, out, k});
      events.push_back({one.free % count, free, k});
    }
    events.push_back({one.back % count, in, k});
    events.push_back({one.need % count, need, k});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tie(a.pos, a.kind, a.move) < std::tie(b.pos, b.kind, b.move);
  });
  std::vector<Ns> out_done(moves.size(), 0);
  std::vector<Ns> in_done(moves.size(), 0);
  Ns now = 0;
  Ns out_free = 0;
  Ns in_free = 0;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    const Ns start = now;
    stall_ns = 0;
    auto event = events.begin();
    for (Index pos = 0; pos < count; ++pos) {
      const Ns came = now;
      Ns waited_out = 0;
      for (; event != events.end() && event->pos == pos; ++event) {
        const std::size_t k = at(event->move);
        const std::size_t tensor = at(moves[k].tensor);
        switch (event->kind) {
          case out:
            out_done[k] = out_free = std::max(now, out_free) + step_->arrays.out_ns[tensor];
            break;
          case free:
            now = std::max(now, out_done[k]);
            waited_out = now - came;
            break;
          case in:
            in_done[k] = in_free = std::max(now, in_free) + step_->arrays.in_ns[tensor];
            break;
          case need:
            now = std::max(now, in_done[k]);
            break;
        }
      }
      const std::size_t op = at(op_at[at(pos)]);
      if (step_->arrays.upload[op] != 0) {
        now = std::max(now, in_free);
        in_free = now + step_->arrays.latency_ns[op];
      }
      late_out_[at(pos)] = waited_out;
      late_in_[at(pos)] = now - came - waited_out;
      stall_ns += now - came;
      now += step_->arrays.latency_ns[op];
    }
    iteration_ns = now - start;
  }
}

}  // namespace tensile::planner

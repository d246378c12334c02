#include "sweep.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tensile::planner {
namespace {

constexpr Index most_stretches = 1 << 15;  // of a lane's calendar: each spans one or a few operators of a large graph
constexpr int most_weighed = 24;           // candidates weighed at a position besides those that are taken
constexpr int deepest_chain = 12;      // longest estimated chain; longer ones count as impossible (Candidates too)
constexpr double choice_price = 0.05;  // fixed cost of a choice, in mean operators: prefers fewer choices
constexpr double impossible_ns = 1e18;

}  // namespace

bool Sweep::Open::operator<(const Open& other) const {
  return key != other.key ? key < other.key : part > other.part;
}

Sweep::Sweep(const Step& step, const Layout& layout, const std::vector<Bytes>& load_bytes, Choices& choices,
             Bytes limit_bytes, const Weights& weights)
    : step_(step),
      layout_(layout),
      choices_(choices),
      limit_bytes_(limit_bytes),
      weights_(weights),
      count_(layout.length()),
      period_(layout.end_ns.back()),
      least_ns_(choice_price * static_cast<double>(period_) / static_cast<double>(count_) + 1),
      out_lane_(period_, std::min(count_, most_stretches)),
      in_lane_(period_, std::min(count_, most_stretches)) {
  change_.assign(at(count_) + 1, 0);
  over_.assign(at(count_) + 1, 0);
  many_.assign(at(count_) + 1, 0);
  Bytes before = 0;
  for (Index pos = 0; pos < count_; ++pos) {
    const Bytes load = load_bytes[at(pos)];
    change_[at(pos)] = load - before;
    before = load;
    const Bytes excess = std::max<Bytes>(0, load - limit_bytes_);
    over_[at(pos) + 1] = over_[at(pos)] + excess;
    many_[at(pos) + 1] = many_[at(pos)] + (excess > 0 ? 1 : 0);
  }
  needed_.assign(step.gaps.size(), none);
  gone_until_.assign(step.gaps.size(), none);
  held_until_.assign(at(step.tensors()), none);
  list_parts();
  reserve_present();
}

Index Sweep::run() {
  for (position_ = 0; position_ < count_; ++position_) {
    load_ += change_[at(position_)];
    open_at(position_);
    if (load_ > limit_bytes_) relieve(position_);
  }
  return chosen_;
}

// --- what is open -------------------------------------------------------------------------------------------------

void Sweep::list_parts() {
  starting_.assign(at(count_) + 2, 0);
  const Order& order = layout_.order();
  for (std::size_t gap = 0; gap < step_.gaps.size(); ++gap) {
    if (choices_.choice[gap] != Choice::keep) continue;
    for (const GapPart& stretch : order.parts(gap)) {
      const auto number = static_cast<Index>(parts_.size());
      parts_.push_back({stretch.gap, stretch.after, stretch.need});
      if (stretch.after + 1 < count_) ++starting_[at(stretch.after + 1) + 2];
      if (stretch.need > count_) open_.push_back({bound_of(parts_.back(), count_), number, true});
    }
  }
  std::make_heap(open_.begin(), open_.end());
  std::partial_sum(starting_.begin(), starting_.end(), starting_.begin());
  started_.resize(at(starting_.back()));
  for (std::size_t number = 0; number < parts_.size(); ++number)
    if (const Index position = parts_[number].after + 1; position < count_)
      started_[at(starting_[at(position) + 1]++)] = static_cast<Index>(number);
}

// Reserve the lanes' time for the copies and uploads of the present layout.
void Sweep::reserve_present() {
  for (const Move& move : layout_.moves) {
    if (move.copies) out_lane_.take_from(move.out_start_ns, step_.arrays.out_ns[at(move.tensor)]);
    in_lane_.take_until(move.in_start_ns + step_.arrays.in_ns[at(move.tensor)], step_.arrays.in_ns[at(move.tensor)]);
  }
  for (const Index pos : layout_.order().uploads) {
    const Ns duration = step_.arrays.latency_ns[at(layout_.order().op_at[at(pos)])];
    in_lane_.take_until(layout_.end_ns[at(pos)], duration);
  }
}

void Sweep::open_at(Index position) {
  for (Index place = starting_[at(position)]; place < starting_[at(position) + 1]; ++place) {
    const Index number = started_[at(place)];
    const Part& part = parts_[at(number)];
    if (choices_.choice[at(part.gap)] != Choice::keep) continue;
    const double key = bound_of(part, part.after + 1);
    if (key <= 0) continue;
    open_.push_back({key, number, false});
    std::push_heap(open_.begin(), open_.end());
  }
}

// Return an upper bound of the score of this part at this position or later.
double Sweep::bound_of(const Part& part, Index from) const {
  const Gap& gap = step_.gaps[at(part.gap)];
  const Bytes size = step_.arrays.size_bytes[at(gap.tensor)];
  if (size == 0) return 0;
  const double gain = benefit(size, from, part.need);
  if (gain <= 0) return 0;
  const Ns copies = step_.arrays.in_ns[at(gap.tensor)] + (copied(part.gap) ? 0 : step_.arrays.out_ns[at(gap.tensor)]);
  double cost = weights_.lane_price * static_cast<double>(copies);
  if (weights_.drops && step_.droppable(gap))
    cost = std::min(cost, weights_.again_price * chain_ns(gap.tensor, gap.need, 0));
  return gain / (cost + least_ns_);
}

// --- choosing -----------------------------------------------------------------------------------------------------

void Sweep::relieve(Index position) {
  struct Weighed {
    Open open;
    Offer offer;
  };
  std::vector<Weighed> weighed;
  int more = most_weighed;
  while (load_ > limit_bytes_) {
    auto best = std::max_element(weighed.begin(), weighed.end(), [](const Weighed& a, const Weighed& b) {
      return a.offer.score != b.offer.score ? a.offer.score < b.offer.score : b.open < a.open;
    });
    const bool enough = best != weighed.end() && best->offer.score > 0 &&
                        (open_.empty() || more <= 0 || best->offer.score >= open_.front().key);
    if (enough) {
      take(best->open, best->offer, position);
      weighed.erase(best);
      more = std::max(more, 4);
      continue;
    }
    if (open_.empty() || more <= 0) break;
    std::pop_heap(open_.begin(), open_.end());
    Open open = open_.back();
    open_.pop_back();
    const Part& part = parts_[at(open.part)];
    const Index here = open.before ? position + count_ : position;
    if (here >= part.need || choices_.choice[at(part.gap)] != Choice::keep) continue;
    --more;
    ++weighed_;
    const Offer offer = weigh(open, position);
    open.key = bound_of(part, here);
    if (open.key > 0) weighed.push_back({open, offer});
  }
  for (const Weighed& unchosen : weighed) {
    open_.push_back(unchosen.open);
    std::push_heap(open_.begin(), open_.end());
  }
}

Sweep::Offer Sweep::weigh(const Open& open, Index position) const {
  const Part& part = parts_[at(open.part)];
  const Gap& gap = step_.gaps[at(part.gap)];
  const Index here = open.before ? position + count_ : position;
  Offer best = weigh_swap(part, here);
  if (!weights_.drops || !step_.droppable(gap)) return best;
  const double cost = weights_.again_price * chain_ns(gap.tensor, gap.need, 0);
  const double score = benefit(step_.arrays.size_bytes[at(gap.tensor)], here, part.need) / (cost + least_ns_);
  if (cost < impossible_ns && score > best.score) best = {Choice::drop, score, 0, 0, part.need};
  return best;
}

// Weigh a swap whose tensor is away from this position on, for as long as the lanes allow; if that is too short,
// until the tensor is needed, with waits.
Sweep::Offer Sweep::weigh_swap(const Part& part, Index position) const {
  const Index tensor = step_.gaps[at(part.gap)].tensor;
  const Bytes size = step_.arrays.size_bytes[at(tensor)];
  const Ns out_ns = copied(part.gap) ? 0 : step_.arrays.out_ns[at(tensor)];
  const Ns in_ns = step_.arrays.in_ns[at(tensor)];
  Offer offer{Choice::swap, 0, 0, 0, part.need};
  const Ns room = out_lane_.free(when(layout_.end_ns, part.after), when(layout_.boundary_ns, position));
  offer.out_stall = std::max<Ns>(0, out_ns - room);
  Index until = part.need;
  const Index bound = needed_[at(part.gap)];
  if (bound != none) until = std::min(until, layout_.order().block[at(bound)]);
  if (until <= position) return offer;
  const Ns due = when(layout_.begin_ns, until);
  const Ns start = in_lane_.latest(due, in_ns);
  const Ns here = when(layout_.end_ns, position);
  if (start < here) {
    offer.in_stall = std::max<Ns>(0, in_ns - in_lane_.free(here, due));
    offer.away_until = until;
  } else {
    Index low = position;  // becomes the last boundary at `start` or earlier
    Index high = until;
    while (high - low > 1) {
      const Index middle = low + (high - low) / 2;
      (when(layout_.boundary_ns, middle) <= start ? low : high) = middle;
    }
    offer.away_until = std::max(low, position + 1);
  }
  const double cost = static_cast<double>(offer.out_stall + offer.in_stall) +
                      weights_.lane_price * static_cast<double>(out_ns + in_ns) + least_ns_;
  offer.score = benefit(size, position, offer.away_until) / cost;
  return offer;
}

void Sweep::take(const Open& open, const Offer& offer, Index position) {
  const Part& part = parts_[at(open.part)];
  const Index tensor = step_.gaps[at(part.gap)].tensor;
  const Bytes size = step_.arrays.size_bytes[at(tensor)];
  ++chosen_;
  choices_.choice[at(part.gap)] = offer.choice;
  const Index here = open.before ? position + count_ : position;
  if (offer.choice == Choice::drop) return take_drop(part, position);
  const Ns out_ns = copied(part.gap) ? 0 : step_.arrays.out_ns[at(tensor)];
  out_lane_.stretch(when(layout_.boundary_ns, here), offer.out_stall);
  in_lane_.stretch(when(layout_.boundary_ns, here), offer.out_stall);
  const Ns left = when(layout_.end_ns, part.after);
  out_lane_.take_from(left, out_ns);
  const Index bound = needed_[at(part.gap)];
  const Index until = bound == none ? part.need : std::min(part.need, layout_.order().block[at(bound)]);
  const Ns due = when(layout_.begin_ns, until);
  out_lane_.stretch(due, offer.in_stall);
  in_lane_.stretch(due, offer.in_stall);
  in_lane_.take_until(due, step_.arrays.in_ns[at(tensor)]);
  gone_until_[at(part.gap)] = offer.away_until;
  add(here, offer.away_until, -size);
  if (open.before && part.after + 1 < count_) {  // the tensor leaves again before the iteration ends
    const Ns gone = std::max(left, out_lane_.earliest(left, 0) + out_ns);
    Index free = part.after + 1;
    while (free < count_ && layout_.boundary_ns[at(free)] < gone) ++free;
    if (free > position) add(free, count_, -size);
  }
}

void Sweep::take_drop(const Part& part, Index position) {
  const Gap& gap = step_.gaps[at(part.gap)];
  const Index bound = needed_[at(part.gap)];
  const Index until = bound == none ? part.need : std::min(part.need, layout_.order().block[at(bound)]);
  gone_until_[at(part.gap)] = until;
  add(position, until, -step_.arrays.size_bytes[at(gap.tensor)]);
  if (bound == none) make_there(gap.tensor, gap.need, 0);
}

// Record that the tensors from which this tensor is recomputed must exist before this operator.
void Sweep::make_there(Index tensor, Index op, int depth) {
  const Index maker = step_.first_writer[at(tensor)];
  if (maker == none || depth > deepest_chain) return;
  const Index position = layout_.order().block[at(op)];
  for (Index number = step_.first_access(maker); number < step_.last_access(maker); ++number) {
    const Access& source = step_.access(number);
    if (source.writes || step_.persistent(source.tensor)) continue;
    const Bytes size = step_.arrays.size_bytes[at(source.tensor)];
    if (step_.present_until[at(source.tensor)] < op) {
      add(position, position + 1, size);
      make_there(source.tensor, op, depth + 1);
      continue;
    }
    const Index gap = gap_around(source.tensor, op);
    if (gap == none) hold(source.tensor, position);
    if (gap == none || (needed_[at(gap)] != none && needed_[at(gap)] <= op)) continue;
    needed_[at(gap)] = op;
    if (choices_.choice[at(gap)] == Choice::keep) continue;
    if (gone_until_[at(gap)] > position) add(position, gone_until_[at(gap)], size);
    gone_until_[at(gap)] = std::min(gone_until_[at(gap)], position);
    if (choices_.choice[at(gap)] == Choice::drop) make_there(source.tensor, op, depth + 1);
  }
}

// Record that the tensor, if it is past its last use, stays on the device until this position.
void Sweep::hold(Index tensor, Index position) {
  Index& since = held_until_[at(tensor)];
  if (since == none) since = layout_.order().position[at(step_.last_user[at(tensor)])] + 1;
  if (position < since) return;
  add(since, position + 1, step_.arrays.size_bytes[at(tensor)]);
  since = position + 1;
}

// --- estimates ----------------------------------------------------------------------------------------------------

// Return the bytes over the limit, summed over positions, that disappear if this size is away between two positions.
double Sweep::benefit(Bytes size, Index from, Index until) const {
  if (until <= from) return 0;
  const auto sum = [&](const auto& before) {
    const auto upto = [&](Index pos) {
      return pos < count_ ? before[at(pos)] : before.back() + before[at(std::min(pos - count_, count_))];
    };
    return upto(until) - upto(from);
  };
  return static_cast<double>(std::min<Bytes>(size * static_cast<Bytes>(sum(many_)), sum(over_)));
}

// Return whether the host has a valid copy when the gap starts: the tensor was swapped before and not written since.
bool Sweep::copied(Index number) const {
  const Gap& gap = step_.gaps[at(number)];
  if (number == step_.first_gap[at(gap.tensor)] || choices_.choice[at(number - 1)] != Choice::swap) return false;
  const Gap& before = step_.gaps[at(number - 1)];
  return before.need <= gap.after && !step_.written_between(gap.tensor, before.after, gap.after + 1);
}

// Return the estimated time to recompute the tensor before this operator. Tensors that already exist for another
// recomputation cost nothing.
double Sweep::chain_ns(Index tensor, Index op, int depth) const {
  const Index maker = step_.first_writer[at(tensor)];
  if (maker == none || step_.arrays.repeatable[at(maker)] == 0 || depth > deepest_chain) return impossible_ns;
  if (step_.writers[at(tensor)].size() != 1) return impossible_ns;
  auto sum = static_cast<double>(step_.arrays.latency_ns[at(maker)]);
  for (Index number = step_.first_access(maker); number < step_.last_access(maker) && sum < impossible_ns; ++number) {
    const Access& source = step_.access(number);
    if (source.writes) continue;
    if (step_.written_between(source.tensor, maker, op)) return impossible_ns;
    if (step_.persistent(source.tensor)) continue;
    if (step_.present_until[at(source.tensor)] < op) {
      sum += chain_ns(source.tensor, op, depth + 1);
      continue;
    }
    const Index gap = gap_around(source.tensor, op);
    if (gap == none || choices_.choice[at(gap)] != Choice::drop) continue;
    if (needed_[at(gap)] != none && needed_[at(gap)] <= op) continue;
    sum += chain_ns(source.tensor, op, depth + 1);
  }
  return sum;
}

// Return the gap of this tensor that contains the operator, or none.
Index Sweep::gap_around(Index tensor, Index op) const {
  const auto begin = step_.gaps.begin() + step_.first_gap[at(tensor)];
  const auto end = step_.gaps.begin() + step_.first_gap[at(tensor) + 1];
  const auto next = std::upper_bound(begin, end, op, [](Index value, const Gap& gap) { return value <= gap.after; });
  if (next == begin || (next - 1)->need <= op) return none;
  return static_cast<Index>(next - step_.gaps.begin()) - 1;
}

// Add bytes to the load between two positions, which count on across iterations. Positions that the sweep has passed
// are ignored.
void Sweep::add(Index first, Index stop, Bytes size) {
  const Index turn = first >= count_ ? count_ : 0;
  first = std::max(first - turn, position_);
  stop = std::min(stop - turn, count_);
  if (stop <= first) return;
  if (first == position_) {
    load_ += size;
  } else {
    change_[at(first)] += size;
  }
  change_[at(stop)] -= size;
}

Ns Sweep::when(const std::vector<Ns>& axis, Index position) const {
  if (position < count_) return axis[at(position)];
  return position < 2 * count_ ? axis[at(position - count_)] + period_ : axis.back() + period_;
}

}  // namespace tensile::planner

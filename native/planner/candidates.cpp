#include "candidates.hpp"

#include <algorithm>

namespace tensile::planner {
namespace {

constexpr int deepest_estimate = 12;
constexpr double impossible_ns = 1e18;

}  // namespace

const std::vector<Candidate>& Candidates::find(const Layout& layout, Bytes limit_bytes,
                                               const GreedyOptions& options) {
  layout_ = &layout;
  look_around(limit_bytes);
  found_.clear();
  for (const Index number : step_->gaps_around(peak_op_)) consider(number, options);
  return found_;
}

void Candidates::look_around(Bytes limit_bytes) {
  const Layout& now = *layout_;
  const Index count = now.length();
  period_ = now.end_ns.back();
  least_ns_ = step_price * static_cast<double>(period_) + 1;
  peak_ = now.peak_position();
  peak_op_ = std::min(now.order().captured_operator(peak_), step_->operators() - 1);
  over_peak_ = now.load_bytes[at(peak_)] - limit_bytes;
  over_.resize(at(count) + 1);
  many_.resize(at(count) + 1);
  over_[0] = many_[0] = 0;
  for (Index pos = 0; pos < count; ++pos) {
    const Bytes excess = std::max<Bytes>(0, now.load_bytes[at(pos)] - limit_bytes);
    over_[at(pos) + 1] = over_[at(pos)] + excess;
    many_[at(pos) + 1] = many_[at(pos)] + (excess > 0 ? 1 : 0);
  }
  out_lane_.clear(period_);
  in_lane_.clear(period_);
  for (const Index k : now.departures) {
    const Move& move = now.moves[at(k)];
    if (move.copies) out_lane_.add(move.out_start_ns, step_->arrays.out_ns[at(move.tensor)]);
    in_lane_.add(move.in_start_ns, step_->arrays.in_ns[at(move.tensor)]);
  }
  out_lane_.close();
  in_lane_.close();
}

void Candidates::consider(Index number, const GreedyOptions& options) {
  const Gap& gap = step_->gaps[at(number)];
  const Choice choice = choices_->choice[at(number)];
  if (choice == Choice::drop) return consider_instead(number);
  const Index ops = step_->operators();
  const auto lies_in = [&](Index op) { return op > gap.after && op < gap.need; };
  const Index inside = lies_in(peak_op_) ? peak_op_ : lies_in(peak_op_ + ops) ? peak_op_ + ops : none;
  if (inside == none) return;
  const double gain = benefit(gap);
  if (options.drops && step_->droppable(gap)) {
    const double cost = chain_ns(gap.tensor, gap.need, 0);
    if (cost < impossible_ns) found_.push_back({number, Choice::drop, {}, gain / (cost + least_ns_), cost});
  }
  if (choice == Choice::keep)
    consider_swap(number, inside, gain, options);
  else
    consider_longer(number, inside);
}

// Consider a swap that covers the peak. Its cost is the copying time for which the lanes have no room.
void Candidates::consider_swap(Index number, Index inside, double gain, const GreedyOptions& options) {
  const Gap& gap = step_->gaps[at(number)];
  const Order& order = layout_->order();
  const Ns out_ns = step_->arrays.out_ns[at(gap.tensor)];
  const Ns in_ns = step_->arrays.in_ns[at(gap.tensor)];
  const Ns left = when(layout_->end_ns, first_of(gap) - 1);
  const Ns gone = when(layout_->boundary_ns, unrolled(order.block, inside));
  const Ns here = when(layout_->end_ns, unrolled(order.position, inside));
  const Ns due = when(layout_->begin_ns, unrolled(order.block, gap.need));
  const Ns out_room = out_lane_.free(left, gone);
  const Ns in_room = in_lane_.free(here, due);
  const Ns stall = std::max<Ns>(0, out_ns - out_room) + std::max<Ns>(0, in_ns - in_room);
  const double cost =
      static_cast<double>(stall) + options.lane_price * static_cast<double>(out_ns + in_ns) + least_ns_;
  found_.push_back({number,
                    Choice::swap,
                    {inside, inside},
                    gain / cost,
                    static_cast<double>(stall),
                    left,
                    due,
                    out_room,
                    in_room});
}

// Consider extending an existing swap that does not cover the peak yet.
void Candidates::consider_longer(Index number, Index inside) {
  const Index peak = inside >= step_->operators() ? peak_ + layout_->length() : peak_;
  const Cover cover = choices_->cover[at(number)].with(inside);
  if (layout_->away(number, peak) || cover == choices_->cover[at(number)]) return;
  const Gap& gap = step_->gaps[at(number)];
  const Ns out_ns = step_->arrays.out_ns[at(gap.tensor)];
  const Ns in_ns = step_->arrays.in_ns[at(gap.tensor)];
  Ns late = out_ns + in_ns;
  for (const Move& move : layout_->moves_of(number)) {
    if (move.after >= peak || move.need <= peak) continue;
    late = peak < move.free
               ? std::min(out_ns, when(layout_->boundary_ns, move.free) - when(layout_->boundary_ns, peak))
               : std::min(in_ns, when(layout_->end_ns, peak) - when(layout_->boundary_ns, move.back));
  }
  const auto waits = static_cast<double>(std::max<Ns>(0, late));
  found_.push_back({number, Choice::swap, cover, nearby(gap) / (waits + least_ns_), waits});
}

// Consider a swap instead of a recomputation, if the peak lies within the recomputation.
void Candidates::consider_instead(Index number) {
  const Gap& gap = step_->gaps[at(number)];
  if (gap.need != peak_op_ || layout_->order().repeated[at(peak_)] == 0) return;
  const auto waits = static_cast<double>(step_->arrays.out_ns[at(gap.tensor)] + step_->arrays.in_ns[at(gap.tensor)]);
  found_.push_back({number, Choice::swap, {gap.after + 1, gap.need - 1}, nearby(gap) / (waits + least_ns_), waits});
}

// Return the bytes over the limit, summed over positions, that disappear if the tensor is away for the whole gap.
double Candidates::benefit(const Gap& gap) const {
  const Index first = first_of(gap);
  const Index stop = unrolled(layout_->order().block, gap.need);
  if (stop <= first) return 0;
  const Index count = layout_->length();
  const auto sum = [&](const auto& before) {
    return (stop < count ? before[at(stop)] : before.back() + before[at(stop - count)]) - before[at(first)];
  };
  const Bytes size = step_->arrays.size_bytes[at(gap.tensor)];
  return static_cast<double>(std::min<Bytes>(size * static_cast<Bytes>(sum(many_)), sum(over_)));
}

// Return the bytes over the limit that disappear at the peak.
double Candidates::nearby(const Gap& gap) const {
  return static_cast<double>(std::min<Bytes>(step_->arrays.size_bytes[at(gap.tensor)], over_peak_));
}

// Return a rough estimate of the time to recompute the tensor before this operator, given the present choices.
double Candidates::chain_ns(Index tensor, Index op, int depth) const {
  const Index maker = step_->first_writer[at(tensor)];
  if (maker == none || step_->arrays.repeatable[at(maker)] == 0 || depth > deepest_estimate) return impossible_ns;
  if (step_->writers[at(tensor)].size() != 1) return impossible_ns;
  auto sum = static_cast<double>(step_->arrays.latency_ns[at(maker)]);
  for (Index number = step_->first_access(maker); number < step_->last_access(maker) && sum < impossible_ns;
       ++number) {
    const Access& source = step_->access(number);
    if (source.writes) continue;
    if (step_->written_between(source.tensor, maker, op)) return impossible_ns;
    if (step_->persistent(source.tensor)) continue;
    if (given_up(source.tensor, op)) sum += chain_ns(source.tensor, op, depth + 1);
  }
  return sum;
}

// Return whether the tensor would have to be recomputed as well, to exist before this operator.
bool Candidates::given_up(Index tensor, Index op) const {
  if (step_->present_until[at(tensor)] < op) return true;
  for (Index k = step_->first_gap[at(tensor)]; k < step_->first_gap[at(tensor) + 1]; ++k) {
    const Gap& gap = step_->gaps[at(k)];
    if (gap.after < op && op < gap.need && choices_->choice[at(k)] == Choice::drop) return true;
  }
  return false;
}

Index Candidates::unrolled(const std::vector<Index>& where, Index op) const {
  const Index ops = step_->operators();
  return op < ops ? where[at(op)] : where[at(op - ops)] + layout_->length();
}

Ns Candidates::when(const std::vector<Ns>& axis, Index position) const {
  const Index count = layout_->length();
  return position < count ? axis[at(position)] : axis[at(position - count)] + period_;
}

}  // namespace tensile::planner

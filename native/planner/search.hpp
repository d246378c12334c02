// The search for the choices of one step graph: a greedy search down to a limit, and then a local search that undoes
// and remakes parts of the choices.
//
// The search judges every step by the exact load and time of the resulting layout. Equal inputs give equal results:
// the search is limited by steps and not by time, and its random numbers are seeded.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "candidates.hpp"
#include "layout.hpp"
#include "step.hpp"
#include "sweep.hpp"

namespace tensile::planner {

class Search {
 public:
  explicit Search(StepArrays arrays);
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  // Choose to keep all tensors.
  void clear();

  // Swap every tensor for as long as possible, which needs the least memory that swapping can reach, whatever it
  // costs.
  void exhaust();

  // Swap and drop until the peak is within the limit. False if no choice lowers the peak further, or if `most`
  // layouts did not suffice.
  bool lower(Bytes limit_bytes, const GreedyOptions& options, Index most);

  // Choose anew for the whole graph in at most `rounds` sweeps, and lay the choices into the limit: a first plan that
  // needs only a few layouts, whatever the size of the graph (sweep.hpp). False if the sweeps do not reach the limit;
  // the choices with the least load of all sweeps are kept then.
  bool sweep(Bytes limit_bytes, const Weights& weights, int rounds);

  // Large-neighbourhood search within the memory that the choices were laid into: undo choices around random
  // operators, sweep where the load is over the limit, and keep the result if it is faster. Ends after `most`
  // layouts. Returns the number of improvements.
  int sweep_again(bool drops, Index most, std::uint64_t seed);

  // Within the memory that the choices were laid into, swap tensors that the lanes can move while they are idle, so
  // that tensors which are recomputed can be kept. A single swap frees less than a recomputed tensor needs, so
  // neither change alone is faster. Ends after `most` layouts. Returns whether the result is faster.
  bool swap_idle(Index most);

  // Continue from the present choices by demanding that tensors are away where the load is over the limit, the
  // largest first. False if that does not suffice, or if `most` layouts do not.
  bool press(Bytes limit_bytes, Index most);

  // Undo choices that the limit does not need, the most expensive first, trying at most `most` of them.
  void prune(Bytes limit_bytes, int most);

  // Lay the present choices into this much memory and remove all demands (`Cover`). False, without any change, if the
  // memory is too small. The memory applies until the choices change otherwise.
  bool fill(Bytes room_bytes);

  // Where it is faster, gap by gap and within the present memory: recompute swapped tensors (if `drops`), keep
  // tensors that are swapped or dropped, and swap tensors that are dropped. Ends when no change is faster, or after
  // `most` layouts.
  void exchange(bool drops, Index most);

  // Let each swap allocate its memory early and free it late, where the peak leaves memory for that and the iteration
  // waits, by at most these distances in operators. The lanes take these times per tensor. The fastest distance is
  // laid out until the choices change. Return whether any distance is faster.
  bool advance(const std::vector<Index>& distances, std::vector<Ns> out_ns, std::vector<Ns> in_ns);

  // Local search: undo choices around random operators, lower the peak again, and keep the result if it is faster.
  // Ends after `most` layouts. Returns the number of improvements.
  int improve(Bytes limit_bytes, const GreedyOptions& options, Index most, std::uint64_t seed);

  // Return the number of sets of choices that were laid out so far.
  Index layouts() const { return layouts_; }

  // Return the copying time of both lanes together in one iteration.
  Ns lane_ns() const { return lane_ns(layout_); }

  const Step& step() const { return step_; }
  const Layout& layout() const { return layout_; }
  const Choices& choices() const { return choices_; }

  // Return the choices that keep all tensors.
  Choices nothing() const;

  // Raises std::invalid_argument for choices that cannot be followed.
  void choose(Choices choices);

  struct Standing {
    Bytes peak_bytes;
    Ns iteration_ns;
  };

  // Choose what leads to this order and these moves, which are given by tensor, positions modulo the length, and
  // copies. Every swap must cover at least what its move covers. Returns the peak and the time of exactly these moves
  // with the present times. Returns nothing, and leaves the choices unchanged, if no choices lead to them.
  std::optional<Standing> adopt(const std::vector<Index>& order, std::vector<Move> moves);

  // Keep the choices, but remove all demands (`Cover`) from the swaps.
  void uncover();

 private:
  struct Excess {
    Bytes bytes;
    Ns time;
  };
  struct Places {  // the positions of operators in an order that `adopt` reads
    Index count;
    std::vector<Index> block;     // by operator, the first position of the recomputations for it
    std::vector<Index> position;  // by operator, the position at which it runs itself
  };
  struct Undo {
    Index gap;
    Choice choice;
    Cover cover;
  };
  class Ranking;

  std::vector<Index> exchangeable(Choice other) const;
  bool advance_all(const std::vector<Index>& distances);
  std::vector<Move> advanced(Index distance) const;
  bool exchange_all(const std::vector<Index>& gaps, Choice other, Index end);
  std::vector<Index> recomputed() const;
  std::vector<Index> kept_over_peak() const;
  bool swap_free(const std::vector<Index>& gaps, Index end);
  bool undo_around(Index first, Index width, std::uint64_t draw);
  bool sweep_once(Bytes limit_bytes, const Weights& weights, const std::vector<Bytes>& load_bytes);
  void put(Index gap, Choice choice, Cover cover);
  void take_back();
  bool try_out();
  void accept(Layout& layout);
  bool settle();
  bool fits_beside(const Candidate& candidate, const std::vector<const Candidate*>& others) const;
  bool step_together(Ranking& ranked, Bytes limit_bytes, int together, double surprise, bool careful);
  bool step_best(Ranking& ranked, Bytes limit_bytes, const GreedyOptions& options);
  bool demand_more(Bytes limit_bytes);
  bool demand_at(Index position, Bytes limit_bytes);
  bool refused(const Candidate& candidate) const;
  void refuse(const Candidate& candidate);
  void forgive();
  Excess excess(const Layout& layout, Bytes limit_bytes) const;
  bool readable(const std::vector<Index>& order, const std::vector<Move>& moves) const;
  std::optional<Choices> read(const std::vector<Index>& order, std::vector<Move>& moves) const;
  bool read_move(const Places& places, Move& move, Choices& choices) const;
  Ns lane_ns(const Layout& layout) const;
  static std::size_t at(Index index) { return static_cast<std::size_t>(index); }

  Step step_;
  Workbench bench_;
  Choices choices_;
  Layout layout_;           // of the accepted choices
  Layout trial_;            // of the choices on trial
  Layout best_;             // of the best choices tried so far
  std::vector<Undo> undo_;  // the way back from the choices on trial to the accepted ones, the latest change last
  Candidates candidates_;
  std::vector<std::uint8_t> refused_;  // by gap, a bit for each choice
  std::vector<Index> refusals_;
  Index layouts_ = 0;  // number of layouts so far: the unit in which the effort of the search is limited
};

}  // namespace tensile::planner

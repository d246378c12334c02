// Searches the choices of one step graph: greedily down to a limit, then by undoing and remaking parts of it.
//
// Every step is judged by the exact load and time of the layout that it leads to. Equal inputs give equal results:
// the search stops by steps, and its random numbers are seeded.
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

  // Keep everything.
  void clear();

  // Swap everything for as long as possible: the least memory that swapping gives, whatever it costs.
  void exhaust();

  // Swap and drop until the peak is within the limit. False where nothing lowers it further, or `most` layouts did
  // not suffice.
  bool lower(Bytes limit_bytes, const Manner& manner, Index most);

  // Choose anew for the whole graph at once, and lay that into the limit: a first plan that takes a few layouts
  // whatever the size (sweep.hpp). False where that many rounds do not come down to it; the least load that they came
  // to is then what is chosen.
  bool sweep(Bytes limit_bytes, const Weights& weights, int rounds);

  // Large-neighbourhood search within the room that what is chosen was laid into: undo around random places, sweep what
  // is then over the limit, keep what is faster. Ends after `most` layouts. Returns how often it became faster.
  int sweep_again(bool drops, Index most, std::uint64_t seed);

  // Go on from what is chosen by demanding that tensors are away where the load is over the limit, the largest first.
  // False where that does not suffice, or `most` layouts did not.
  bool press(Bytes limit_bytes, Index most);

  // Take back what the limit does not need, the most expensive first.
  void prune(Bytes limit_bytes, int most);

  // Lay what is chosen into this much memory, from which on nothing has to be covered. False, and nothing done, where
  // that is not enough. Holds until something else is chosen.
  bool fill(Bytes room_bytes);

  // Make again what is swapped (if that is wanted), keep what is not kept, and swap what is made again, gap by gap,
  // where that is faster; within the room that there is. Ends where nothing is, or after `most` layouts.
  void exchange(bool drops, Index most);

  // Let each swap take its memory ahead of time, and give it back late, where the peak leaves room for that and the
  // iteration waits: as far as these distances, in operators. The fastest, on lanes with these times by tensor, is what
  // is laid out until something else is chosen. Whether any is faster.
  bool advance(const std::vector<Index>& distances, std::vector<Ns> out_ns, std::vector<Ns> in_ns);

  // Undo what is chosen around random places and lower again; keep what is faster. Ends after `most` layouts.
  // Returns how often it became faster.
  int improve(Bytes limit_bytes, const Manner& manner, Index most, std::uint64_t seed);

  // The same choices with other times.
  void retime(std::vector<Ns> latency_ns, std::vector<Ns> out_ns, std::vector<Ns> in_ns);

  // How many sets of choices were laid out so far.
  Index layouts() const { return layouts_; }

  // How long the lanes copy for one iteration, both together.
  Ns lane_ns() const { return lane_ns(layout_); }

  const Step& step() const { return step_; }
  const Layout& layout() const { return layout_; }
  const Choices& choices() const { return choices_; }

  // What is chosen where everything is kept.
  Choices nothing() const;

  // Raises std::invalid_argument for choices that cannot be followed.
  void choose(Choices choices);

  struct Standing {
    Bytes peak_bytes;
    Ns iteration_ns;
  };

  // Choose what leads to this order and these moves, given by tensor, positions modulo the length, and copies; every
  // swap is to cover at least what it covers now. Returns how these very moves stand with the present times, or
  // nothing, and nothing is chosen, where no choices lead to them.
  std::optional<Standing> adopt(const std::vector<Index>& order, std::vector<Move> moves);

  // The same choices, but no swap has to cover anything.
  void uncover();

 private:
  struct Excess {
    Bytes bytes;
    Ns time;
  };
  struct Places {  // of an order that is read
    Index count;
    std::vector<Index> block;     // by operator, the first position of what is made again for it
    std::vector<Index> position;  // by operator, where it runs itself
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
  bool undo_around(Index first, Index width, std::uint64_t draw);
  bool sweep_once(Bytes limit_bytes, const Weights& weights, const std::vector<Bytes>& load_bytes);
  void put(Index gap, Choice choice, Cover cover);
  void take_back();
  bool try_out();
  void accept(Layout& layout);
  bool settle();
  bool fits_beside(const Candidate& one, const std::vector<const Candidate*>& others) const;
  bool step_together(Ranking& ranked, Bytes limit_bytes, int together, double surprise, bool careful);
  bool step_best(Ranking& ranked, Bytes limit_bytes, const Manner& manner);
  bool demand_more(Bytes limit_bytes);
  bool demand_at(Index position, Bytes limit_bytes);
  bool refused(const Candidate& one) const;
  void refuse(const Candidate& one);
  void forgive();
  Excess excess(const Layout& layout, Bytes limit_bytes) const;
  bool readable(const std::vector<Index>& order, const std::vector<Move>& moves) const;
  std::optional<Choices> read(const std::vector<Index>& order, std::vector<Move>& moves) const;
  bool read_move(const Places& places, Move& one, Choices& found) const;
  Ns lane_ns(const Layout& layout) const;
  static std::size_t at(Index index) { return static_cast<std::size_t>(index); }

  Step step_;
  Workbench bench_;
  Choices choices_;
  Layout layout_;           // of what is chosen
  Layout trial_;            // of what is tried out
  Layout best_;             // of the best that was tried out
  std::vector<Undo> undo_;  // from what is tried out back to what is chosen, the latest change last
  Candidates candidates_;
  std::vector<std::uint8_t> refused_;  // by gap, a bit for each choice
  std::vector<Index> refusals_;
  Index layouts_ = 0;  // laid out so far: the unit in which searching is rationed
};

}  // namespace tensile::planner

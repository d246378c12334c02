// Searches the choices of one step graph: greedily down to a limit, then by undoing and remaking parts of it.
//
// Every step is judged by the exact load and time of the layout that it leads to. Equal inputs give equal results:
// the search stops by steps, and its random numbers are seeded.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "layout.hpp"
#include "step.hpp"

namespace tensile::planner {

// What the greedy search may do, and how it weighs.
struct Manner {
  bool drops = true;       // make things again
  double lane_price = 0;   // nanoseconds that a nanosecond on a lane counts as, besides the waits that it causes
  double swap_price = 1;   // nanoseconds that one of waiting counts as
  int tried = 6;           // candidates that are laid out for each step
  int together = 1;        // the best of so many tensors are chosen at once, while that is not too slow: large graphs
  bool careful = false;    // at once only what the lanes have room for beside one another
  double surprise = 0.1;   // of an iteration, by how much that may be slower than foreseen; from 1 on it does not matter
};

class Search {
 public:
  explicit Search(StepArrays arrays) : step_(std::move(arrays)), layout_(step_) { clear(); }

  // Keep everything.
  void clear();

  // Swap everything for as long as possible: the least memory that swapping gives, whatever it costs.
  void exhaust();

  // Swap and drop until the peak is within the limit. False where nothing lowers it further, or `most` layouts did
  // not suffice.
  bool lower(Bytes limit_bytes, const Manner& manner, Index most);

  // Take back what the limit does not need, the most expensive first.
  void prune(Bytes limit_bytes, int most);

  // Undo what is chosen around random places and lower again; keep what is faster. Ends after `most` layouts.
  // Returns how often it became faster.
  int improve(Bytes limit_bytes, const Manner& manner, Index most, std::uint64_t seed);

  // The same choices with other times.
  void retime(std::vector<Ns> latency_ns, std::vector<Ns> out_ns, std::vector<Ns> in_ns);

  // How many sets of choices were laid out so far.
  Index layouts() const { return layouts_; }

  // How long the lanes copy for one iteration, both together.
  Ns lane_ns() const { return lane_ns(layout_); }

  const Layout& layout() const { return layout_; }
  const Choices& choices() const { return choices_; }
  void choose(Choices choices);

 private:
  struct Candidate {
    Index gap;
    Choice choice;
    Cover cover;
    double score = 0;
    double cost_ns = 0;
    // For a new swap: when it may leave and has to be back, and how long the lanes are free for it until the peak
    // and from it on.
    Ns leaves_ns = 0;
    Ns due_ns = 0;
    Ns out_room_ns = 0;
    Ns in_room_ns = 0;
  };
  struct Standing {
    Bytes excess;
    Ns time;
  };

  bool apply(const Candidate& candidate);
  bool fits_beside(const Candidate& one, const std::vector<const Candidate*>& others) const;
  bool step_together(const std::vector<Candidate>& ranked, Bytes limit_bytes, int together, double surprise,
                     bool careful);
  bool step_best(const std::vector<Candidate>& ranked, Bytes limit_bytes, const Manner& manner,
                 std::set<std::pair<Index, Choice>>& refused);
  bool settle();
  Standing standing(Bytes limit_bytes) const;
  std::vector<Candidate> candidates(Bytes limit_bytes, const Manner& manner) const;
  double chain_ns(Index tensor, Index op, int depth) const;
  Ns lane_ns(const Layout& layout) const;
  static std::size_t at(Index index) { return static_cast<std::size_t>(index); }

  Step step_;
  Choices choices_;
  Layout layout_;
  Index layouts_ = 0;  // laid out so far: the unit in which searching is rationed
};

}  // namespace tensile::planner

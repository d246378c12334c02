// The streams of the fake driver: the queued operations, the order in which they run, and a check that conflicting
// operations are ordered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "fake_cuda.hpp"

namespace fake_cuda {

// A vector clock: for each stream, by its number, how many of its operations are known to come before.
using Clock = std::map<std::uint64_t, std::uint64_t>;

// One operation of a graph.
struct Node {
  std::vector<Access> accesses;
  std::function<void()> body;
  std::set<std::size_t> before;  // the numbers of all operations that must run before it, also indirectly
};

class Graph {
 public:
  std::vector<Node> nodes;
};

class Queue;

// A graph while it is recorded. A call that the API forbids meanwhile invalidates it.
struct Capture {
  const Queue* origin;
  std::shared_ptr<Graph> graph;
  std::set<Queue*> queues;
  bool ended = false;
};

// The state that one recording of an event refers to. If the event was recorded into a graph, `after` holds the
// operations of the graph that come before it.
struct Mark {
  bool done = false;
  Clock clock;
  double at_ms = 0;
  std::shared_ptr<Capture> capture{};
  std::set<std::size_t> after{};
};

struct Operation {
  std::function<void()> body;
  std::shared_ptr<const Mark> waits_for;
  std::vector<Access> accesses;
};

class Queue {
 public:
  explicit Queue(std::uint64_t number) : number_(number) {}

 private:
  friend class Queues;

  const std::uint64_t number_;
  Clock clock_;
  std::deque<Operation> operations_;
  std::shared_ptr<Capture> capture_;
  std::set<std::size_t> after_;  // operations of the graph that come before the next operation
};

// Not thread-safe.
class Queues {
 public:
  explicit Queues(std::vector<std::string>& violations) : violations_(violations) {}

  void seed(unsigned int seed) { random_.seed(seed); }
  void hold(bool enabled) { held_ = enabled; }

  // Run operations of this queue before the call that queues them returns. Races are not checked, because the
  // process's own accesses are not known.
  void follow_host(Queue* queue) { host_queue_ = queue; }
  Queue* make();
  void destroy(Queue* queue);
  std::size_t queued(const Queue* queue) const { return queue->operations_.size(); }

  // Streams that wait for an event of the origin are recorded too, and the origin must wait for them before the end.
  void begin_capture(Queue& origin);
  std::shared_ptr<const Graph> end_capture(Queue& origin);
  void drop_capture(Queue& origin);
  void replay(const std::shared_ptr<const Graph>& graph, Queue& queue);
  bool captures() const { return capturing_ != nullptr; }
  static bool captures(const Queue& queue) { return queue.capture_ != nullptr; }

  // Invalidate the capture after a call that the API forbids during a capture.
  void break_capture(const std::string& why);

  void add(Queue& queue, std::vector<Access> accesses, std::function<void()> body);
  std::shared_ptr<Mark> record(Queue& queue);
  void wait(Queue& queue, std::shared_ptr<const Mark> mark);

  // The host has seen that the event is done: all that it queues from now on comes after the event.
  void seen(const Mark& mark) { join(host_, mark.clock); }

  // Run one operation of a random queue, unless `hold` is enabled.
  void look() {
    if (!held_) step();
  }
  void drain(Queue& queue);
  void drain_all();

  // Return whether queued operations touch any of these bytes.
  bool uses(std::uint64_t begin, std::size_t size_bytes) const;
  void forget() { past_.clear(); }

 private:
  struct Past {
    Access access;
    std::uint64_t queue;
    std::uint64_t count;
  };

  void capture_operation(Queue& queue, std::vector<Access> accesses, std::function<void()> body);
  void capture_wait(Queue& queue, const Mark& mark);
  void check_order(const Graph& graph);
  void run(const Graph& graph);
  static void join(Clock& clock, const Clock& other);
  void check_races(const Queue& queue, const std::vector<Access>& accesses);
  bool step();  // returns false if no operation can run
  void hurry(Queue& queue);

  std::vector<std::string>& violations_;
  std::minstd_rand random_{1};
  std::uint64_t made_ = 0;
  double now_ms_ = 0;
  bool held_ = false;
  std::shared_ptr<Capture> capturing_;
  Queue* host_queue_ = nullptr;
  Clock host_;
  std::map<Queue*, std::unique_ptr<Queue>> queues_;
  std::vector<Past> past_;
};

}  // namespace fake_cuda

// The streams of the fake driver: what is queued, in which order it runs, and whether that order was asked for.
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

// How much of each stream, by its number, is known to come before.
using Clock = std::map<std::uint64_t, std::uint64_t>;

// Operations by number, and which come before each.
struct Node {
  std::vector<Access> accesses;
  std::function<void()> body;
  std::set<std::size_t> before;  // all of them, however far
};

class Graph {
 public:
  std::vector<Node> nodes;
};

class Queue;

// A graph while it is recorded; broken by whatever the API forbids meanwhile.
struct Capture {
  const Queue* origin;
  std::shared_ptr<Graph> graph;
  std::set<Queue*> queues;
  bool ended = false;
};

// What one recording of an event stands for; of a recorded one, after which operations of the graph it comes.
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
  std::set<std::size_t> after_;  // of the graph, what the next operation comes after
};

// Not for several threads at once.
class Queues {
 public:
  explicit Queues(std::vector<std::string>& violations) : violations_(violations) {}

  void seed(unsigned int seed) { random_.seed(seed); }
  void hold(bool held) { held_ = held; }

  // What is queued here has been done when the call returns, and what else touches the memory is not known.
  void follow_host(Queue* queue) { host_queue_ = queue; }
  Queue* make();
  void destroy(Queue* queue);
  std::size_t queued(const Queue* queue) const { return queue->operations_.size(); }

  // Streams that wait for what the origin recorded are recorded too, and must come back to it before the end.
  void begin_capture(Queue& origin);
  std::shared_ptr<const Graph> end_capture(Queue& origin);
  void drop_capture(Queue& origin);
  void replay(const std::shared_ptr<const Graph>& graph, Queue& queue);
  bool captures() const { return capturing_ != nullptr; }
  static bool captures(const Queue& queue) { return queue.capture_ != nullptr; }

  // The API forbids what was done while something is recorded.
  void break_capture(const std::string& why);

  void add(Queue& queue, std::vector<Access> accesses, std::function<void()> body);
  std::shared_ptr<Mark> record(Queue& queue);
  void wait(Queue& queue, std::shared_ptr<const Mark> mark);

  // The host has seen that all of it is done: whatever it queues from now on comes after.
  void seen(const Mark& mark) { join(host_, mark.clock); }

  // One operation of a queue drawn by lot, unless held.
  void look() {
    if (!held_) step();
  }
  void drain(Queue& queue);
  void drain_all();

  // Whether queued operations touch any of these bytes.
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
  bool step();  // false when none can run
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

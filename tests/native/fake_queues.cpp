#include "fake_queues.hpp"

#include <algorithm>
#include <utility>

#include "fault.hpp"

namespace fake_cuda {
namespace {

bool overlap(const Access& first, const Access& second) {
  return first.begin < second.begin + second.size_bytes && second.begin < first.begin + first.size_bytes;
}

}  // namespace

Queue* Queues::make() {
  auto made = std::make_unique<Queue>(++made_);
  Queue* queue = made.get();
  queues_.emplace(queue, std::move(made));
  return queue;
}

// Runs the queued operations first: the API releases a stream once its work is done.
void Queues::destroy(Queue* queue) {
  drain(*queue);
  queues_.erase(queue);
}

void Queues::add(Queue& queue, std::vector<Access> accesses, std::function<void()> body) {
  if (captures(queue)) return capture_operation(queue, std::move(accesses), std::move(body));
  join(queue.clock_, host_);
  ++queue.clock_[queue.number_];
  if (host_queue_ == nullptr) check_races(queue, accesses);
  queue.operations_.push_back({std::move(body), nullptr, std::move(accesses)});
  hurry(queue);
}

std::shared_ptr<Mark> Queues::record(Queue& queue) {
  auto mark = std::make_shared<Mark>();
  if (captures(queue)) {
    mark->capture = queue.capture_;
    mark->after = queue.after_;
    return mark;
  }
  add(queue, {}, [this, mark] {
    mark->done = true;
    mark->at_ms = now_ms_;
  });
  mark->clock = queue.clock_;
  return mark;
}

void Queues::wait(Queue& queue, std::shared_ptr<const Mark> mark) {
  if (mark == nullptr) return;
  if (captures(queue) || mark->capture != nullptr) return capture_wait(queue, *mark);
  join(queue.clock_, mark->clock);
  queue.operations_.push_back({[] {}, std::move(mark), {}});
  hurry(queue);
}

bool Queues::step() {
  std::vector<Queue*> ready;
  for (const auto& [queue, owner] : queues_) {
    if (queue->operations_.empty()) continue;
    const auto& mark = queue->operations_.front().waits_for;
    if (mark == nullptr || mark->done) ready.push_back(queue);
  }
  if (ready.empty()) return false;
  // Sorted by number, so that a seed gives the same order whatever the addresses are.
  std::sort(ready.begin(), ready.end(), [](const Queue* a, const Queue* b) { return a->number_ < b->number_; });
  Queue& chosen = *ready[random_() % ready.size()];
  const Operation operation = std::move(chosen.operations_.front());
  chosen.operations_.pop_front();
  now_ms_ += 0.25;
  operation.body();
  return true;
}

void Queues::drain(Queue& queue) {
  while (!queue.operations_.empty()) {
    if (!step()) {
      violations_.push_back("streams wait for each other");
      queue.operations_.clear();
    }
  }
  join(host_, queue.clock_);
}

void Queues::drain_all() {
  for (const auto& [queue, owner] : queues_) drain(*queue);
}

void Queues::begin_capture(Queue& origin) {
  capturing_ = std::make_shared<Capture>(Capture{&origin, std::make_shared<Graph>(), {&origin}});
  origin.capture_ = capturing_;
}

void Queues::drop_capture(Queue& origin) {
  if (capturing_ != nullptr) capturing_->graph = nullptr;
  end_capture(origin);
}

std::shared_ptr<const Graph> Queues::end_capture(Queue& origin) {
  const std::shared_ptr<Capture> capture = std::exchange(capturing_, nullptr);
  if (capture == nullptr || capture->origin != &origin) {
    violations_.push_back("a capture ends that did not begin");
    return nullptr;
  }
  std::shared_ptr<Graph> graph = capture->graph;
  for (Queue* queue : capture->queues) {
    if (graph != nullptr &&
        !std::includes(origin.after_.begin(), origin.after_.end(), queue->after_.begin(), queue->after_.end())) {
      violations_.push_back("a stream that was captured never came back");
      graph = nullptr;
    }
  }
  for (Queue* queue : capture->queues) {
    queue->capture_ = nullptr;
    queue->after_.clear();
  }
  capture->ended = true;
  if (graph != nullptr) check_order(*graph);
  return graph;
}

// Queues the graph as one operation of this stream. Its parts run in a random order among those that the graph
// allows.
void Queues::replay(const std::shared_ptr<const Graph>& graph, Queue& queue) {
  std::vector<Access> accesses;
  for (const Node& node : graph->nodes) accesses.insert(accesses.end(), node.accesses.begin(), node.accesses.end());
  add(queue, std::move(accesses), [this, graph] { run(*graph); });
}

void Queues::run(const Graph& graph) {
  std::set<std::size_t> done;
  while (done.size() < graph.nodes.size()) {
    std::vector<std::size_t> ready;
    for (std::size_t number = 0; number < graph.nodes.size(); ++number) {
      const auto& before = graph.nodes[number].before;
      if (!done.contains(number) && std::includes(done.begin(), done.end(), before.begin(), before.end())) {
        ready.push_back(number);
      }
    }
    const std::size_t chosen = ready[random_() % ready.size()];
    graph.nodes[chosen].body();
    done.insert(chosen);
  }
}

void Queues::break_capture(const std::string& why) {
  violations_.push_back(tensile::text("while a stream is captured: ", why));
  if (capturing_ != nullptr) capturing_->graph = nullptr;
}

void Queues::capture_operation(Queue& queue, std::vector<Access> accesses, std::function<void()> body) {
  Graph* graph = queue.capture_->graph.get();
  if (graph == nullptr) return;
  const std::size_t number = graph->nodes.size();
  graph->nodes.push_back({std::move(accesses), std::move(body), queue.after_});
  queue.after_.insert(number);
}

void Queues::capture_wait(Queue& queue, const Mark& mark) {
  if (mark.capture == nullptr) return break_capture("a wait for what is not part of it");
  if (mark.capture->ended) return break_capture("a wait for what another capture recorded");
  queue.capture_ = mark.capture;
  queue.capture_->queues.insert(&queue);
  queue.after_.insert(mark.after.begin(), mark.after.end());
}

void Queues::check_order(const Graph& graph) {
  for (std::size_t later = 0; later < graph.nodes.size(); ++later) {
    const Node& second = graph.nodes[later];
    for (std::size_t earlier = 0; earlier < later; ++earlier) {
      if (second.before.contains(earlier)) continue;
      for (const Access& a : graph.nodes[earlier].accesses) {
        for (const Access& b : second.accesses) {
          if ((a.writes || b.writes) && overlap(a, b)) {
            violations_.push_back(tensile::text("race: a graph uses address ", b.begin, " in no order"));
          }
        }
      }
    }
  }
}

bool Queues::uses(std::uint64_t begin, std::size_t size_bytes) const {
  const Access freed{begin, size_bytes, true};
  for (const auto& [queue, owner] : queues_) {
    for (const Operation& operation : queue->operations_) {
      for (const Access& access : operation.accesses) {
        if (overlap(access, freed)) return true;
      }
    }
  }
  return false;
}

void Queues::join(Clock& clock, const Clock& other) {
  for (const auto& [number, count] : other) {
    std::uint64_t& known = clock[number];
    known = std::max(known, count);
  }
}

void Queues::check_races(const Queue& queue, const std::vector<Access>& accesses) {
  for (const Access& access : accesses) {
    for (const Past& past : past_) {
      if (past.queue == queue.number_ || !overlap(past.access, access)) continue;
      if (!past.access.writes && !access.writes) continue;
      const auto known = queue.clock_.find(past.queue);
      if (known != queue.clock_.end() && known->second >= past.count) continue;
      violations_.push_back(tensile::text("race: streams ", past.queue, " and ", queue.number_, " use address ",
                                          access.begin, " in no order"));
    }
  }
  for (const Access& access : accesses) past_.push_back({access, queue.number_, queue.clock_.at(queue.number_)});
}

// Runs a random number of queued operations, at most two, so that operations run early as well as late.
void Queues::hurry(Queue& queue) {
  if (&queue == host_queue_) return drain(queue);
  if (held_) return;
  for (auto steps = random_() % 3; steps > 0 && step(); --steps) {
  }
}

}  // namespace fake_cuda

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

// What is queued still runs: the API releases a stream once its work is done.
void Queues::destroy(Queue* queue) {
  drain(*queue);
  queues_.erase(queue);
}

void Queues::add(Queue& queue, std::vector<Access> accesses, std::function<void()> body) {
  join(queue.clock_, host_);
  ++queue.clock_[queue.number_];
  if (host_queue_ == nullptr) check_races(queue, accesses);
  queue.operations_.push_back({std::move(body), nullptr, std::move(accesses)});
  hurry(queue);
}

std::shared_ptr<Mark> Queues::record(Queue& queue) {
  auto mark = std::make_shared<Mark>();
  add(queue, {}, [this, mark] {
    mark->done = true;
    mark->at_ms = now_ms_;
  });
  mark->clock = queue.clock_;
  return mark;
}

void Queues::wait(Queue& queue, std::shared_ptr<const Mark> mark) {
  if (mark == nullptr) return;
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
  // By number, so that a seed means the same order whatever the addresses.
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

// Between not at all and at once.
void Queues::hurry(Queue& queue) {
  if (&queue == host_queue_) return drain(queue);
  if (held_) return;
  for (auto steps = random_() % 3; steps > 0 && step(); --steps) {
  }
}

}  // namespace fake_cuda

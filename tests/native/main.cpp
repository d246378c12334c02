// Runs all tests, or those whose names contain the first argument. The exit status is 0 if all of them pass.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"

namespace check {
namespace {

struct Test {
  const char* name;
  std::function<void()> body;
};

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

int failures = 0;

void run(const Test& test) {
  const int before = failures;
  try {
    test.body();
  } catch (const std::exception& error) {
    fail(test.name, 0, tensile::text("unexpected: ", error.what()));
  }
  std::printf("%s %s\n", failures == before ? "ok  " : "FAIL", test.name);
  std::fflush(stdout);
}

}  // namespace

bool add(const char* name, std::function<void()> body) {
  tests().push_back({name, std::move(body)});
  return true;
}

void fail(const char* file, int line, const std::string& message) {
  ++failures;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, message.c_str());
}

void expect_fault(const char* file, int line, tensile::Fault::Kind kind, const std::string& words,
                  const std::function<void()>& body) {
  try {
    body();
  } catch (const tensile::Fault& fault) {
    if (fault.kind() != kind) fail(file, line, tensile::text("a fault of another kind: ", fault.what()));
    if (std::strstr(fault.what(), words.c_str()) == nullptr) {
      fail(file, line, tensile::text("'", words, "' is not in '", fault.what(), "'"));
    }
    return;
  }
  fail(file, line, "no fault");
}

void wait_until(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      throw tensile::Fault(tensile::Fault::Kind::invariant, "the condition was not true within a minute");
    }
    std::this_thread::yield();
  }
}

}  // namespace check

int main(int argc, char** argv) {
  int ran = 0;
  for (const auto& test : check::tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    check::run(test);
    ++ran;
  }
  std::printf("%d tests, %d failures\n", ran, check::failures);
  return ran == 0 || check::failures != 0 ? 1 : 0;
}

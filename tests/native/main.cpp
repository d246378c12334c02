// Runs every TEST, or those whose name contains the first argument; the exit status says whether all held.
#include <cstdio>
#include <cstring>
#include <exception>
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
}

}  // namespace

bool add(const char* name, std::function<void()> body) {
  tests().push_back({name, std::move(body)});
  return true;
}

void fail(const char* file, int line, const std::string& what) {
  ++failures;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
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

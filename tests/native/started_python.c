// Starts Python once in a test server, before the server forks its sessions. tests/compiled_bridge.py builds this.
//
// PL/Python starts Python in each session that calls it, which takes a sixtieth of a second of a processor.
// Here the server's first process starts it, and the sessions inherit it. The functions of Python are those of
// PL/Python's library, which the server loads before this one. PostgreSQL's headers need not be installed:
// the struct below is `Pg_magic_struct` of versions 15 to 17.

#include <string.h>

extern void Py_InitializeEx(int with_signal_handlers);
extern int PyRun_SimpleString(const char* source);
extern const char* Py_GetVersion(void);

struct magic {
  int size, version, most_arguments, most_index_keys, name_bytes, float8_by_value;
  char abi[32];
};

const struct magic* Pg_magic_func(void) {
  static const struct magic magic = {sizeof(struct magic), PG_MAJOR * 100, 100, 32, 64, 1, "PostgreSQL"};
  return &magic;
}

void _PG_init(void) {
  // From Python 3.12 on, PL/Python cannot add its module to a Python that runs already.
  if (strncmp(Py_GetVersion(), "3.11.", 5) != 0) return;
  Py_InitializeEx(0);
  PyRun_SimpleString("import bridge_imports");
}

// Preloaded: CLOCK_BOOTTIME is an hour ahead while the file that SUSPENDED names exists, as after a suspend of an hour.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, time);
  const char *path = getenv("SUSPENDED");
  if (!failed && clock == CLOCK_BOOTTIME && path && access(path, F_OK) == 0) time->tv_sec += 3600;
  return failed;
}

/* Preloaded into a program, shows it a wall clock that is EARLIER_S seconds behind. Monotonic clocks, and so waits, are
   untouched; libfaketime 0.9.10 breaks Python's time.sleep there. librdkafka waits until wall-clock times, so it sees the
   true ones. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

/* How far behind the clock of this caller is, in seconds. */
static long earlier(void *caller) {
    const char *seconds = getenv("EARLIER_S");
    Dl_info found;
    int kafka = dladdr(caller, &found) && found.dli_fname && strstr(found.dli_fname, "librdkafka");
    return seconds && !kafka ? atol(seconds) : 0;
}

static int wall_clock(clockid_t clock, struct timespec *result, void *caller) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, result);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) result->tv_sec -= earlier(caller);
    return failed;
}

int clock_gettime(clockid_t clock, struct timespec *result) {
    return wall_clock(clock, result, __builtin_return_address(0));
}

int gettimeofday(struct timeval *restrict result, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int failed = wall_clock(CLOCK_REALTIME, &now, __builtin_return_address(0));
    result->tv_sec = now.tv_sec;
    result->tv_usec = now.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *result) {
    struct timespec now;
    wall_clock(CLOCK_REALTIME, &now, __builtin_return_address(0));
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}

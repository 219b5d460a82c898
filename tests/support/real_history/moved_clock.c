/* The machine's clock as one that was set forth and back: a library that is loaded before the C library.

   The file that MOVED_CLOCK names has the steps that the clock has made. It is mapped into each process, so that a step
   is there for all of them at once:

       int64 count, then for each step: int64 the real time from which on it counts, int64 how far ahead the clock is

   in nanoseconds. Real time is what the kernel shows, and it only grows. The times of files are moved too: each by the
   step that was in force when it was written. Monotonic clocks are left alone, as the kernel leaves them alone. A wait
   until a time of the moved clock is one until the same moment of the kernel's. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define BILLION 1000000000LL
#define MAPPED_BYTES 4096

struct step { int64_t since_ns, ahead_ns; };
struct steps { int64_t count; struct step at[]; };

static const struct steps *steps;

__attribute__((constructor)) static void map_steps(void) {
    const char *path = getenv("MOVED_CLOCK");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    void *mapped = mmap(NULL, MAPPED_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED) steps = mapped;
}

static int64_t ahead_at(int64_t real_ns) {
    if (steps == NULL) return 0;
    for (int64_t i = __atomic_load_n(&steps->count, __ATOMIC_ACQUIRE) - 1; i >= 0; i--)
        if (steps->at[i].since_ns <= real_ns) return steps->at[i].ahead_ns;
    return 0;
}

static int64_t ahead_now(void) { return ahead_at(INT64_MAX); }

static void move(struct timespec *time, int64_t by_ns) {
    int64_t ns = time->tv_nsec + by_ns % BILLION;
    time->tv_sec += by_ns / BILLION + (ns >= BILLION) - (ns < 0);
    time->tv_nsec = ns + (ns < 0) * BILLION - (ns >= BILLION) * BILLION;
}

static void *next_of(const char *name) {
    /* The first version of pthread_cond_timedwait has another structure. */
    void *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
    return found != NULL ? found : dlsym(RTLD_NEXT, name);
}

/* ------------------------------------------------------------------------------------------------------- clocks */

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*next)(clockid_t, struct timespec *);
    if (next == NULL) next = next_of("clock_gettime");
    int result = next(clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) move(time, ahead_now());
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *stored) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (stored != NULL) *stored = now.tv_sec;
    return now.tv_sec;
}

/* -------------------------------------------------------------------------------------------------------- waits */

/* A time of the moved clock as one of the kernel's. No machine's monotonic clock is that far, so others stay. */
static struct timespec kernels(const struct timespec *until) {
    struct timespec moved = *until;
    if (until->tv_sec > BILLION) move(&moved, -ahead_now());
    return moved;
}

#define WAIT(name, object)                                                   \
    int name(object *waited, const struct timespec *until) {                 \
        static int (*next)(object *, const struct timespec *);               \
        if (next == NULL) next = next_of(#name);                             \
        struct timespec moved = kernels(until);                              \
        return next(waited, &moved);                                         \
    }

WAIT(sem_timedwait, sem_t)
WAIT(pthread_mutex_timedlock, pthread_mutex_t)
WAIT(pthread_rwlock_timedrdlock, pthread_rwlock_t)
WAIT(pthread_rwlock_timedwrlock, pthread_rwlock_t)

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (next == NULL) next = next_of("pthread_cond_timedwait");
    struct timespec moved = kernels(until);
    return next(cond, mutex, &moved);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left) {
    static int (*next)(clockid_t, int, const struct timespec *, struct timespec *);
    if (next == NULL) next = next_of("clock_nanosleep");
    struct timespec moved = flags & TIMER_ABSTIME ? kernels(time) : *time;
    return next(clock, flags, &moved, left);
}

/* -------------------------------------------------------------------------------------------------------- files */

static void move_file_time(struct timespec *time) {
    move(time, ahead_at(time->tv_sec * BILLION + time->tv_nsec));
}

static int moved_stat(int result, struct stat *found) {
    if (result == 0) {
        move_file_time(&found->st_mtim);
        move_file_time(&found->st_ctim);
        move_file_time(&found->st_atim);
    }
    return result;
}

static int look(int folder, const char *path, struct stat *found, int flags) {
    static int (*next)(int, const char *, struct stat *, int);
    if (next == NULL) next = dlsym(RTLD_NEXT, "fstatat");
    return moved_stat(next(folder, path, found, flags), found);
}

int fstatat(int folder, const char *restrict path, struct stat *restrict found, int flags) {
    return look(folder, path, found, flags);
}
int stat(const char *restrict path, struct stat *restrict found) { return look(AT_FDCWD, path, found, 0); }
int lstat(const char *restrict path, struct stat *restrict found) {
    return look(AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW);
}
int fstat(int fd, struct stat *found) { return look(fd, "", found, AT_EMPTY_PATH); }

/* Times that a program sets. */
static struct timespec set_time(const struct timespec *time) {
    struct timespec real = *time;
    if (time->tv_nsec >= 0 && time->tv_nsec < BILLION) move(&real, -ahead_now());
    return real;
}

int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    static int (*next)(int, const char *, const struct timespec *, int);
    if (next == NULL) next = next_of("utimensat");
    if (times == NULL) return next(folder, path, NULL, flags);
    struct timespec real[2] = {set_time(&times[0]), set_time(&times[1])};
    return next(folder, path, real, flags);
}

/* The same for programs that were linked with an older C library, and under their 64-bit names. */
int __xstat(int version, const char *path, struct stat *found) { return (void)version, stat(path, found); }
int __lxstat(int version, const char *path, struct stat *found) { return (void)version, lstat(path, found); }
int __fxstat(int version, int fd, struct stat *found) { return (void)version, fstat(fd, found); }
int __fxstatat(int version, int folder, const char *path, struct stat *found, int flags) {
    return (void)version, look(folder, path, found, flags);
}
#define ALIAS(name, old) extern __typeof__(old) name##_of_64 __asm__(#name) __attribute__((alias(#old)));
ALIAS(stat64, stat)
ALIAS(lstat64, lstat)
ALIAS(fstat64, fstat)
ALIAS(fstatat64, fstatat)
ALIAS(__xstat64, __xstat)
ALIAS(__lxstat64, __lxstat)
ALIAS(__fxstat64, __fxstat)
ALIAS(__fxstatat64, __fxstatat)

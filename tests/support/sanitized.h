/* Under a sanitizer everything takes about ten times as long: tests then do less of the same.
 * SANITIZED is true there, THREADS_SANITIZED only where threads are watched. */
#ifndef KM_TESTS_SUPPORT_SANITIZED_H
#define KM_TESTS_SUPPORT_SANITIZED_H
#include <stdbool.h>

#if defined(__has_feature) /* clang */
#if __has_feature(thread_sanitizer)
#define THREADS_SANITIZED true
#endif
#if __has_feature(address_sanitizer)
#define SANITIZED true
#endif
#elif defined(__SANITIZE_THREAD__)
#define THREADS_SANITIZED true
#elif defined(__SANITIZE_ADDRESS__)
#define SANITIZED true
#endif

#ifndef THREADS_SANITIZED
#define THREADS_SANITIZED false
#elif !defined(SANITIZED)
#define SANITIZED true
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif

#endif

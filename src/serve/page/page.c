/* The pages, embedded at build time, with a content security policy that lets nothing run but their own
 * script: each answer has a nonce of its own. */
#include "base/sha256.h"
#include "serve/api/api.h"
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define EMBED(name, file)                                                                          \
    __asm__(".section .rodata\n.global km_page_" #name "\n.global km_page_" #name "_end\n"         \
            "km_page_" #name ":\n.incbin \"" KERMES_PAGE_FOLDER "/" file "\"\n"                    \
            "km_page_" #name "_end:\n.byte 0\n.previous\n");                                       \
    extern const char km_page_##name[], km_page_##name##_end[]

EMBED(chat, "chat.html");
EMBED(status, "status.html");

static void put_page(km_text *t, const char *page, const char *end, const char *nonce) {
    static const char place[] = "%NONCE%";
    const char *hit;
    while ((hit = memmem(page, (size_t)(end - page), place, sizeof place - 1))) {
        km_text_put(t, page, (size_t)(hit - page));
        km_text_add(t, nonce);
        page = hit + sizeof place - 1;
    }
    km_text_put(t, page, (size_t)(end - page));
}

void km_endpoint_page(km_serve *s, km_exchange *x, bool status_page) {
    unsigned char random[16];
    char nonce[33], policy[400];
    if (s->o.no_page) {
        km_send_error(x, NULL, 404, NULL, "there is nothing at this path");
        return;
    }
    if (getrandom(random, sizeof random, 0) != sizeof random) memset(random, 0, sizeof random);
    km_hex(nonce, random, sizeof random);
    snprintf(
        policy, sizeof policy,
        "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'",
        nonce, nonce);
    km_exchange_header(x, "Content-Security-Policy", policy);
    km_exchange_header(x, "X-Content-Type-Options", "nosniff");
    km_exchange_header(x, "Referrer-Policy", "no-referrer");
    km_exchange_header(x, "Cache-Control", "no-store");
    km_text *t = km_scratch(s);
    if (status_page)
        put_page(t, km_page_status, km_page_status_end, nonce);
    else
        put_page(t, km_page_chat, km_page_chat_end, nonce);
    km_send_text(x, NULL, "text/html; charset=utf-8", t);
}

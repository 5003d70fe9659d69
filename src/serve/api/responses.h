/* What reading (response_items.c) and writing (responses.c) of /v1/responses share. */
#ifndef KM_SERVE_API_RESPONSES_H
#define KM_SERVE_API_RESPONSES_H
#include "serve/api/api.h"

typedef struct km_response_item { /* of the answer, while it is made */
    km_answer_kind kind;          /* TEXT: a message; REASONING; CALL */
    char call_id[32];
    char *name; /* of the function */
    km_text text;
    size_t logprobs; /* of the choice's, where this item's begin */
} km_response_item;

typedef struct km_response_state {
    json_t *input, *talk, *tools; /* the request's items; all so far; tools as chats have them */
    km_response_item *items;
    size_t n_items, cap_items;
    bool open; /* the last one is still being made */
    bool store;
    int64_t sequence; /* number of the next event */
    size_t logprobs_sent;
} km_response_state;

km_status km_responses_read_items(km_api_call *c, json_t **messages);
km_status km_responses_read_tools(km_api_call *c);
km_status km_responses_read_format(km_api_call *c);

#endif

# Manual pages and completions, made by the command itself from the same text as its --help, and
# installed with it.
set(manual ${PROJECT_BINARY_DIR}/manual)
set(kermes_to_run $<TARGET_FILE:kermes>)
if(CMAKE_CROSSCOMPILING)
    if(NOT CMAKE_CROSSCOMPILING_EMULATOR)
        return()
    endif()
    set(kermes_to_run ${PROJECT_BINARY_DIR}/run-kermes)
    list(JOIN CMAKE_CROSSCOMPILING_EMULATOR " " emulator)
    file(WRITE ${kermes_to_run} "#!/bin/sh\nexec ${emulator} ${PROJECT_BINARY_DIR}/kermes \"$@\"\n")
    file(CHMOD ${kermes_to_run} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endif()
add_custom_command(OUTPUT ${manual}/kermes.1
    COMMAND ${PROJECT_SOURCE_DIR}/scripts/make-man ${kermes_to_run} ${manual}
    COMMAND ${kermes_to_run} completion bash > ${manual}/kermes.bash
    COMMAND ${kermes_to_run} completion zsh > ${manual}/_kermes
    COMMAND ${kermes_to_run} completion fish > ${manual}/kermes.fish
    DEPENDS kermes ${PROJECT_SOURCE_DIR}/scripts/make-man ${PROJECT_SOURCE_DIR}/docs/cli.md
        ${PROJECT_SOURCE_DIR}/include/kermes.h
    COMMENT "Making manual pages and completions" VERBATIM)
set(all)
if(NOT KERMES_SANITIZED)
    set(all ALL)
endif()
add_custom_target(kermes_manual ${all} DEPENDS ${manual}/kermes.1)
install(DIRECTORY ${manual}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN "*.1")
install(DIRECTORY ${manual}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man3 FILES_MATCHING PATTERN "*.3")
install(FILES ${manual}/kermes.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
    RENAME kermes OPTIONAL)
install(FILES ${manual}/_kermes DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions OPTIONAL)
install(FILES ${manual}/kermes.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d OPTIONAL)

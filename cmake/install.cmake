# What `cmake --install` copies, and the Debian package made of it (./dev package).
include(GNUInstallDirs)
install(TARGETS pleat RUNTIME)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/pleat)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/LICENSE
  DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
# Completion scripts are what the binary prints.
install(CODE "
  foreach(shell bash zsh)
    execute_process(COMMAND \"$<TARGET_FILE:pleat>\" completion \${shell}
      OUTPUT_FILE \"${CMAKE_BINARY_DIR}/completion.\${shell}\" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()")
install(FILES ${CMAKE_BINARY_DIR}/completion.bash RENAME pleat
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${CMAKE_BINARY_DIR}/completion.zsh RENAME _pleat
  DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME pleat)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "The Pleat maintainers <maintainers@pleat.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trainer of Mixture-of-Experts language models")
set(CPACK_PACKAGE_DESCRIPTION "A training step is written down as a program, checked, planned to the byte, and run.
This build has the CPU back end and runs on processors with AVX2 and FMA (x86-64-v3).")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# OpenBLAS is loaded at run time (device/cpu/blas.h), so no tool finds it. The one with threads is what we test.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libopenblas0-pthread | libopenblas0")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "openmpi-bin")
include(CPack)
